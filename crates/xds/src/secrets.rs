//! Secrets that a gateway requests on its stream (SDS): the subscribed names and the secrets that
//! were sent.
//!
//! Pure: the stream passes in the state of each secret when it becomes known. A secret is sent when
//! it exists and when it changes. It is never removed: a client keeps its certificate until a newer
//! one exists. For a name without a secret, one response reports it as missing, so that the client
//! does not wait. Secrets in files at the proxy are derived from their names: see `file_secret.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::file_secret;
use super::form::ProtocolForm;
use super::request::AdsRequest;
use super::request_limits::{Handled, Violation, check_names};
use super::resource::Version;
use super::unknown_types::{SideResource, SideResponse};
use strait_base::codes;
use strait_model::credential::{Credential, CredentialState, CredentialTrouble};
use strait_proto::envoy::envoy::config::core::v3::{DataSource, data_source::Specifier};
use strait_proto::envoy::envoy::extensions::transport_sockets::tls::v3 as tls;

/// The type URL of secrets.
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// The maximum number of secrets that one stream is served: enough for a gateway with 2,000 hosts,
/// each with a certificate and roots for its clients.
pub const SECRETS_MAX: usize = 4096;
/// The maximum number of subscribed secrets beyond [`SECRETS_MAX`]. They are reported as surplus
/// and use only the memory of their names.
const SURPLUS_MAX: usize = 4096;

/// The secrets that a stream subscribes to, and the secrets that it was sent.
#[derive(Debug, Default)]
pub(super) struct SecretWatches {
    names: BTreeMap<Arc<str>, AskedSecret>,
    /// The number of `names` that exceed [`SECRETS_MAX`].
    surplus: usize,
    /// The nonce of the unanswered response.
    nonce: Option<u64>,
    /// The error of the last answer, if that was a rejection.
    refused: Option<String>,
}

/// The state of one subscribed secret.
#[derive(Debug, Default)]
struct AskedSecret {
    known: Option<KnownSecret>,
    /// The hash of the secret that the client holds.
    sent: Option<u64>,
    /// Whether the client was sent a response that the secret does not exist.
    told_missing: bool,
    /// Whether the secret exceeds the limit. It is then treated as missing.
    is_surplus: bool,
}

/// The known state of a secret.
#[derive(Debug)]
struct KnownSecret {
    /// The hash of the encoded secret, and its content.
    current: Option<(u64, SecretBody)>,
    trouble: Option<CredentialTrouble>,
}

/// The content of a secret. Many streams share a credential, so it is encoded when it is sent.
#[derive(Debug, Clone)]
enum SecretBody {
    /// A secret that refers to files at the proxy, encoded.
    Files(Arc<[u8]>),
    Credential(Arc<Credential>),
}

impl SecretBody {
    fn encoded(&self, name: &str) -> Vec<u8> {
        match self {
            Self::Files(bytes) => bytes.to_vec(),
            Self::Credential(credential) => encode(name, credential),
        }
    }
}

/// The status of a secret, for reports about its proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretReport {
    /// The requested name.
    pub name: Arc<str>,
    /// Whether the proxy was sent the secret.
    pub sent: bool,
    /// The reason why the secret does not exist or is outdated.
    pub trouble: Option<CredentialTrouble>,
}

impl SecretWatches {
    /// Handles a request for secrets.
    ///
    /// # Errors
    /// The request exceeds the limits for names.
    pub(super) fn on_request(
        &mut self,
        form: ProtocolForm,
        request: &AdsRequest<'_>,
    ) -> Result<Handled, Violation> {
        let AdsRequest { names, dropped, listed, nonce, error, .. } = request;
        check_names(names.iter().chain(listed.iter().map(|(name, _)| name)), 0)?;
        let answered = u64::from_str_radix(nonce, 16).ok();
        let is_answer = self.nonce.take_if(|nonce| Some(*nonce) == answered).is_some();
        if is_answer {
            self.refused = error.as_ref().map(|error| error.message.clone());
        }
        match form {
            ProtocolForm::Delta => {
                dropped.iter().for_each(|name| _ = self.names.remove(*name));
                for (name, version) in listed {
                    let held = Version::parse(version).map(|version| version.0);
                    // A client that lists any version holds a secret, which is not removed.
                    self.watch(name)?.sent = Some(held.unwrap_or_default());
                }
                for name in names {
                    let is_listed = listed.iter().any(|(listed, _)| listed == name);
                    let watched = self.watch(name)?;
                    if !is_listed {
                        // A client may have forgotten a name that it subscribes to again (xDS,
                        // delta).
                        (watched.sent, watched.told_missing) = (None, false);
                    }
                }
                self.make_room();
            }
            ProtocolForm::Sotw => {
                let requested: BTreeSet<&str> = names.iter().copied().collect();
                self.names.retain(|name, _| requested.contains(&**name));
                self.make_room();
                for name in names {
                    let watched = self.watch(name)?;
                    if nonce.is_empty() {
                        (watched.sent, watched.told_missing) = (None, false);
                    }
                }
            }
        }
        Ok(match (is_answer, error) {
            (true, Some(_)) => Handled::Refusal,
            (true, None) => Handled::Answer,
            (false, _) => Handled::Request,
        })
    }

    fn watch(&mut self, name: &str) -> Result<&mut AskedSecret, Violation> {
        if !self.names.contains_key(name) {
            if self.names.len() >= SECRETS_MAX + SURPLUS_MAX {
                return Err(Violation::TooManySecrets(SECRETS_MAX + SURPLUS_MAX));
            }
            let watched = if self.names.len() - self.surplus >= SECRETS_MAX {
                self.surplus += 1;
                AskedSecret::surplus()
            } else {
                let of_files = file_secret::of_name(name);
                let current = of_files.map(|body| (xxh3_64(&body), SecretBody::Files(body.into())));
                let known =
                    current.map(|known| KnownSecret { current: Some(known), trouble: None });
                AskedSecret { known, ..AskedSecret::default() }
            };
            self.names.insert(name.into(), watched);
        }
        // Inserted above if it was missing.
        self.names.get_mut(name).ok_or(Violation::TooManySecrets(SECRETS_MAX))
    }

    /// Serves as many of the surplus secrets as the limit now permits.
    fn make_room(&mut self) {
        let is_surplus = |(_, one): &(&Arc<str>, &AskedSecret)| one.is_surplus;
        self.surplus = self.names.iter().filter(is_surplus).count();
        let room = SECRETS_MAX.saturating_sub(self.names.len() - self.surplus);
        if self.surplus == 0 || room == 0 {
            return;
        }
        let taken = self.names.iter().filter(is_surplus).take(room);
        let taken: Vec<Arc<str>> = taken.map(|(name, _)| Arc::clone(name)).collect();
        for name in taken {
            self.names.remove(&name);
            self.surplus -= 1;
            // Treated like a new subscription. The number of names is within the limit.
            let _ = self.watch(&name);
        }
    }

    /// The names of subscribed secrets that must be looked up: neither surplus nor in files at the
    /// proxy.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let given = self.names.iter().filter(|(_, one)| !one.is_surplus);
        given.map(|(name, _)| name).filter(|name| !file_secret::is_one(name))
    }

    /// Returns the number of subscribed secrets beyond [`SECRETS_MAX`].
    pub(super) fn surplus(&self) -> usize {
        self.surplus
    }

    /// Returns the error of the last answer, if that was a rejection.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Records the state of a secret.
    pub(super) fn offer(&mut self, name: &str, state: &CredentialState) {
        let watched = self.names.get_mut(name).filter(|one| state.settled && !one.is_surplus);
        if let Some(watched) = watched {
            let current = state.current.as_ref().map(|credential| {
                let hash = xxh3_64(&encode(name, credential));
                (hash, SecretBody::Credential(Arc::clone(credential)))
            });
            watched.known = Some(KnownSecret { current, trouble: state.trouble.clone() });
        }
    }

    /// Returns whether a response is due.
    pub(super) fn is_due(&self) -> bool {
        self.names.values().any(|one| one.next().is_some())
    }

    /// Returns the next response, with the given nonce. It contains one secret, whose version is
    /// that of the response, or the names of all missing secrets.
    pub(super) fn take(&mut self, form: ProtocolForm, nonce: u64) -> Option<SideResponse> {
        let mut names = self.names.iter_mut();
        let due = names.find_map(|(name, watched)| match watched.next()? {
            SecretNews::Secret(hash, body) => Some((name, hash, body.encoded(name), watched)),
            SecretNews::Missing => None,
        });
        let mut response = SideResponse::of(form, SECRET, nonce, Vec::new());
        if let Some((name, hash, body, watched)) = due {
            watched.sent = Some(hash);
            let (name, type_url) = (name.to_string(), SECRET.to_owned());
            response.resources.push(SideResource { name, type_url, body });
        } else {
            for (name, watched) in &mut self.names {
                if let Some(SecretNews::Missing) = watched.next() {
                    watched.told_missing = true;
                    response.removed.push(Arc::clone(name));
                }
            }
            if response.removed.is_empty() {
                return None;
            }
        }
        self.nonce = Some(nonce);
        Some(response)
    }

    /// Returns the status of each subscribed secret, by name.
    pub(super) fn reports(&self) -> Vec<SecretReport> {
        let report = |(name, watched): (&Arc<str>, &AskedSecret)| SecretReport {
            name: Arc::clone(name),
            sent: watched.sent.is_some(),
            trouble: watched.known.as_ref().and_then(|known| known.trouble.clone()),
        };
        self.names.iter().map(report).collect()
    }
}

/// A change that the client must receive.
enum SecretNews<'a> {
    Secret(u64, &'a SecretBody),
    Missing,
}

impl AskedSecret {
    /// Creates the state of a secret that exceeds the limit.
    fn surplus() -> Self {
        let fact = format!(
            "a gateway receives at most {SECRETS_MAX} secrets, and this one exceeds the limit"
        );
        let trouble = Some(CredentialTrouble { code: &codes::SECRETS_SURPLUS, fact });
        let known = Some(KnownSecret { current: None, trouble });
        Self { known, is_surplus: true, ..Self::default() }
    }

    fn next(&self) -> Option<SecretNews<'_>> {
        match &self.known.as_ref()?.current {
            Some((hash, body)) => {
                (self.sent != Some(*hash)).then_some(SecretNews::Secret(*hash, body))
            }
            // The client keeps a secret that it holds.
            None => (self.sent.is_none() && !self.told_missing).then_some(SecretNews::Missing),
        }
    }
}

/// Encodes a secret as Envoy's message.
fn encode(name: &str, credential: &Credential) -> Vec<u8> {
    let inline = |bytes: &[u8]| {
        let specifier = Some(Specifier::InlineBytes(bytes.to_vec()));
        Some(DataSource { specifier, ..Default::default() })
    };
    let kind = match credential {
        Credential::Pair { chain, key } => tls::secret::Type::TlsCertificate(tls::TlsCertificate {
            certificate_chain: inline(chain),
            private_key: inline(key),
            ..Default::default()
        }),
        Credential::Roots { roots, revoked } => {
            tls::secret::Type::ValidationContext(tls::CertificateValidationContext {
                trusted_ca: inline(roots),
                crl: revoked.as_deref().and_then(inline),
                ..Default::default()
            })
        }
    };
    tls::Secret { name: name.to_owned(), r#type: Some(kind) }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "kubernetes://shop-tls";

    fn request<'a>(names: &[&'a str], nonce: &'a str) -> AdsRequest<'a> {
        AdsRequest { type_url: SECRET, names: names.to_vec(), nonce, ..AdsRequest::default() }
    }

    fn roots_alone(roots: &str) -> Credential {
        Credential::Roots { roots: roots.into(), revoked: None }
    }

    #[test]
    fn revocation_list_is_sent_with_the_roots() {
        let credential = Credential::Roots { roots: "a".into(), revoked: Some("b".into()) };
        let secret = tls::Secret::decode(&*encode(NAME, &credential)).expect("a secret");
        let Some(tls::secret::Type::ValidationContext(context)) = secret.r#type else {
            unreachable!("roots are a validation context")
        };
        let inline = |source: Option<DataSource>| source.and_then(|source| source.specifier);
        assert_eq!(inline(context.crl), Some(Specifier::InlineBytes("b".into())));
        assert_eq!(inline(context.trusted_ca), Some(Specifier::InlineBytes("a".into())));
    }

    fn here(roots: &str) -> CredentialState {
        let current = Some(Arc::new(roots_alone(roots)));
        CredentialState { current, trouble: None, settled: true }
    }

    fn gone() -> CredentialState {
        CredentialState { current: None, trouble: None, settled: true }
    }

    /// Takes the next response. Returns the names of the contained secrets and the number of
    /// missing names.
    fn sent(watches: &mut SecretWatches, form: ProtocolForm) -> Option<(Vec<String>, usize)> {
        let response = watches.take(form, 7)?;
        let names = response.resources.into_iter().map(|one| one.name).collect();
        Some((names, response.removed.len()))
    }

    #[test]
    fn secret_is_sent_on_each_change_and_never_removed() {
        for form in [ProtocolForm::Delta, ProtocolForm::Sotw] {
            let mut watches = SecretWatches::default();
            watches.on_request(form, &request(&[NAME], "")).expect("taken");
            assert!(!watches.is_due(), "nobody has looked yet");
            watches.offer(NAME, &CredentialState::default());
            assert_eq!(sent(&mut watches, form), None, "nor now");
            watches.offer(NAME, &gone());
            assert_eq!(sent(&mut watches, form), Some((vec![], 1)), "nobody waits for it");
            assert_eq!(sent(&mut watches, form), None, "it was said once");
            watches.offer(NAME, &here("a"));
            assert_eq!(sent(&mut watches, form), Some((vec![NAME.to_owned()], 0)));
            watches.offer(NAME, &here("a"));
            assert_eq!(sent(&mut watches, form), None);
            watches.offer(NAME, &here("b"));
            assert_eq!(sent(&mut watches, form), Some((vec![NAME.to_owned()], 0)));
            watches.offer(NAME, &gone());
            assert_eq!(sent(&mut watches, form), None, "it keeps what it has");
            watches.offer(NAME, &here("b"));
            assert_eq!(sent(&mut watches, form), None, "it has that");
        }
    }

    #[test]
    fn listed_secret_is_sent_only_if_it_differs() {
        let body = encode(NAME, &roots_alone("a"));
        let version = Version(xxh3_64(&body)).to_string();
        for (state, expected) in [(here("a"), None), (here("b"), Some(1)), (gone(), None)] {
            let mut watches = SecretWatches::default();
            let listed = vec![(NAME, version.as_str())];
            let first = AdsRequest { listed, ..request(&[NAME], "") };
            watches.on_request(ProtocolForm::Delta, &first).expect("taken");
            watches.offer(NAME, &state);
            let sent = sent(&mut watches, ProtocolForm::Delta).map(|(names, _)| names.len());
            assert_eq!(sent, expected);
        }
    }

    #[test]
    fn surplus_secrets_are_reported_and_do_not_end_the_stream() {
        for form in [ProtocolForm::Delta, ProtocolForm::Sotw] {
            let mut watches = SecretWatches::default();
            let names: Vec<String> =
                (0..SECRETS_MAX + 2).map(|at| format!("kubernetes://host-{at:05}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            watches.on_request(form, &request(&names, "")).expect("taken");
            assert_eq!((watches.names().count(), watches.surplus()), (SECRETS_MAX, 2));
            let (first, last) = (names[0], names[SECRETS_MAX]);
            watches.offer(first, &here("a"));
            watches.offer(last, &here("a"));
            assert_eq!(sent(&mut watches, form), Some((vec![first.to_owned()], 0)));
            assert_eq!(sent(&mut watches, form), Some((vec![], 2)), "nobody waits for these");
            let codes = |watches: &SecretWatches| -> Vec<_> {
                let troubles = watches.reports().into_iter().filter_map(|one| one.trouble);
                troubles.map(|trouble| trouble.code.id).collect()
            };
            assert_eq!(codes(&watches), ["STR1082", "STR1082"]);
            // After the client unsubscribes from one name, the first surplus secret takes its
            // place.
            let (rest, dropped) = match form {
                ProtocolForm::Delta => (Vec::new(), vec![first]),
                ProtocolForm::Sotw => (names[1..].to_vec(), Vec::new()),
            };
            let next = AdsRequest { dropped, ..request(&rest, "7") };
            watches.on_request(form, &next).expect("taken");
            assert_eq!((watches.names().count(), codes(&watches).len()), (SECRETS_MAX, 1));
            watches.offer(last, &here("a"));
            assert_eq!(sent(&mut watches, form), Some((vec![last.to_owned()], 0)));
        }
    }

    #[test]
    fn unlimited_names_end_the_stream() {
        let mut watches = SecretWatches::default();
        let names: Vec<String> = (0..=2 * SECRETS_MAX).map(|at| format!("a{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let requested = watches.on_request(ProtocolForm::Delta, &request(&names, ""));
        assert_eq!(requested, Err(Violation::TooManySecrets(2 * SECRETS_MAX)));
    }

    #[test]
    fn secrets_in_files_at_the_proxy_are_derived_from_their_names() {
        for form in [ProtocolForm::Delta, ProtocolForm::Sotw] {
            let mut watches = SecretWatches::default();
            let names = ["file-root:/ca", "file-root:system~/crl", "file-cert:/c~/k"];
            let strange = ["file-cert:/c", NAME];
            let requested: Vec<_> = names.iter().chain(&strange).copied().collect();
            watches.on_request(form, &request(&requested, "")).expect("taken");
            assert_eq!(watches.names().map(|name| &**name).collect::<Vec<_>>(), strange);
            let mut all = Vec::new();
            while let Some(response) = watches.take(form, 7) {
                all.extend(response.resources);
            }
            let said = all.iter().map(|one| {
                let secret = tls::Secret::decode(&*one.body).expect("a secret");
                format!("{} {:?}", one.name, secret.r#type.expect("something"))
            });
            let mut said: Vec<_> = said.collect();
            said.sort();
            let files = |text: &str| {
                let parts = text.split("Filename(\"").skip(1);
                parts.filter_map(|part| part.split('"').next()).collect::<Vec<_>>().join(" ")
            };
            let files: Vec<_> = said.iter().map(|text| files(text)).collect();
            assert_eq!(files, ["/c /k", "/ca", "/etc/ssl/certs/ca-certificates.crt /crl"]);
        }
    }

    #[test]
    fn response_is_answered_once_and_a_rejection_is_recorded() {
        let mut watches = SecretWatches::default();
        watches.on_request(ProtocolForm::Sotw, &request(&[NAME], "")).expect("taken");
        watches.offer(NAME, &here("a"));
        watches.take(ProtocolForm::Sotw, 7).expect("sent");
        let error = Some(Box::new(strait_proto::envoy::google::rpc::Status {
            message: "bad".into(),
            ..Default::default()
        }));
        let refusal = AdsRequest { error, ..request(&[NAME], "7") };
        assert_eq!(watches.on_request(ProtocolForm::Sotw, &refusal), Ok(Handled::Refusal));
        assert_eq!(watches.refused(), Some("bad"));
        let again = watches.on_request(ProtocolForm::Sotw, &request(&[NAME], "7"));
        assert_eq!(again, Ok(Handled::Request));
        assert!(!watches.is_due(), "what is refused is not sent again as it is");
        watches.on_request(ProtocolForm::Sotw, &request(&[], "7")).expect("taken");
        assert_eq!(watches.names().count(), 0);
    }
}
