//! Secrets that a gateway asks for on its stream (SDS): which, and what it was sent of them.
//!
//! Pure. What is known of each comes from the stream, as it becomes known. A secret is sent when there is one and when it
//! changes, and never taken back: whoever holds a certificate goes on with it until there is a better one. A name of which
//! there is nothing is said so once, so that nobody waits for it with others. What is in files at the proxy itself is known
//! from its name: see `file_secret.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::asked::{Handled, Violation, check_names};
use super::file_secret;
use super::form::ProtocolForm;
use super::request::AdsRequest;
use super::resource::Version;
use super::unknown_types::{SideResource, SideResponse};
use strait_base::codes;
use strait_model::credential::{Credential, CredentialState, CredentialTrouble};
use strait_proto::envoy::envoy::config::core::v3::{DataSource, data_source::Specifier};
use strait_proto::envoy::envoy::extensions::transport_sockets::tls::v3 as tls;

/// The type.
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// The most that one stream is given: a gateway with 2,000 hosts of its own, each with roots for its clients.
pub const SECRETS_MAX: usize = 4096;
/// The most that it may ask for beyond these: what is not given is told, and costs its name.
const SURPLUS_MAX: usize = 4096;

/// What a stream asked for, and was sent.
#[derive(Debug, Default)]
pub(super) struct SecretWatches {
    names: BTreeMap<Arc<str>, AskedSecret>,
    /// How many of these are too many.
    surplus: usize,
    /// Of a response that was not answered yet.
    nonce: Option<u64>,
    /// What the client refused last.
    refused: Option<String>,
}

/// One secret.
#[derive(Debug, Default)]
struct AskedSecret {
    known: Option<KnownSecret>,
    /// What the client holds.
    sent: Option<u64>,
    /// It was told that there is nothing.
    told_missing: bool,
    /// It is one too many: as if there were nothing of it.
    is_surplus: bool,
}

/// What is known of one.
#[derive(Debug)]
struct KnownSecret {
    /// The hash of it encoded, and itself.
    current: Option<(u64, SecretBody)>,
    trouble: Option<CredentialTrouble>,
}

/// What a secret is made of. Many streams share a credential, so it is encoded where it is sent.
#[derive(Debug, Clone)]
enum SecretBody {
    /// Of files at the proxy, encoded.
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

/// How a secret fares, for whoever looks at its proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretReport {
    /// The name that was asked for.
    pub name: Arc<str>,
    /// Whether the proxy has been sent it.
    pub sent: bool,
    /// Why there is nothing, or nothing newer.
    pub trouble: Option<CredentialTrouble>,
}

impl SecretWatches {
    /// Takes a request.
    ///
    /// # Errors
    /// It asks for too much.
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
                    // Whatever it holds is something: it is not taken back.
                    self.watch(name)?.sent = Some(held.unwrap_or_default());
                }
                for name in names {
                    let is_listed = listed.iter().any(|(listed, _)| listed == name);
                    let watched = self.watch(name)?;
                    if !is_listed {
                        // A client may have forgotten a name that it subscribes to again (xDS, delta).
                        (watched.sent, watched.told_missing) = (None, false);
                    }
                }
                self.make_room();
            }
            ProtocolForm::Sotw => {
                let asked: BTreeSet<&str> = names.iter().copied().collect();
                self.names.retain(|name, _| asked.contains(&**name));
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
        // Made above where it was not there.
        self.names.get_mut(name).ok_or(Violation::TooManySecrets(SECRETS_MAX))
    }

    /// Takes in of what was too much as many as there is room for now.
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
            // As if it had been asked for just now; there is room.
            let _ = self.watch(&name);
        }
    }

    /// The names that are asked for, of secrets that somebody has to be asked for.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let given = self.names.iter().filter(|(_, one)| !one.is_surplus);
        given.map(|(name, _)| name).filter(|name| !file_secret::is_one(name))
    }

    /// How many are asked for beyond what a stream is given.
    pub(super) fn surplus(&self) -> usize {
        self.surplus
    }

    /// What the client refused last.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Notes what is known of a secret.
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

    /// Whether something is to be sent.
    pub(super) fn is_due(&self) -> bool {
        self.names.values().any(|one| one.next().is_some())
    }

    /// The next response, under a nonce: one secret, whose version is then that of the response, or all names of which
    /// there is nothing.
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

    /// How each fares, by name.
    pub(super) fn reports(&self) -> Vec<SecretReport> {
        let report = |(name, watched): (&Arc<str>, &AskedSecret)| SecretReport {
            name: Arc::clone(name),
            sent: watched.sent.is_some(),
            trouble: watched.known.as_ref().and_then(|known| known.trouble.clone()),
        };
        self.names.iter().map(report).collect()
    }
}

/// What a client is to be told of a secret.
enum SecretNews<'a> {
    Secret(u64, &'a SecretBody),
    Missing,
}

impl AskedSecret {
    /// One too many.
    fn surplus() -> Self {
        let fact = format!("a gateway is given {SECRETS_MAX} secrets, and this is one more");
        let trouble = Some(CredentialTrouble { code: &codes::SECRETS_SURPLUS, fact });
        let known = Some(KnownSecret { current: None, trouble });
        Self { known, is_surplus: true, ..Self::default() }
    }

    fn next(&self) -> Option<SecretNews<'_>> {
        match &self.known.as_ref()?.current {
            Some((hash, body)) => {
                (self.sent != Some(*hash)).then_some(SecretNews::Secret(*hash, body))
            }
            // What it holds it keeps.
            None => (self.sent.is_none() && !self.told_missing).then_some(SecretNews::Missing),
        }
    }
}

/// A secret as Envoy takes it.
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
    fn what_is_revoked_is_sent_with_the_roots() {
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

    /// What is sent next: names with their bodies' lengths, and names that are not there.
    fn sent(watches: &mut SecretWatches, form: ProtocolForm) -> Option<(Vec<String>, usize)> {
        let response = watches.take(form, 7)?;
        let names = response.resources.into_iter().map(|one| one.name).collect();
        Some((names, response.removed.len()))
    }

    #[test]
    fn a_secret_is_sent_when_it_is_there_and_changes_and_is_never_taken_back() {
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
    fn what_a_client_lists_is_sent_only_if_it_differs() {
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
    fn what_is_more_than_a_gateway_is_given_is_told_so_and_ends_no_stream() {
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
            // One is asked for no more: the first that was too much takes its place.
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
    fn names_without_end_end_the_stream() {
        let mut watches = SecretWatches::default();
        let names: Vec<String> = (0..=2 * SECRETS_MAX).map(|at| format!("a{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let asked = watches.on_request(ProtocolForm::Delta, &request(&names, ""));
        assert_eq!(asked, Err(Violation::TooManySecrets(2 * SECRETS_MAX)));
    }

    #[test]
    fn files_at_the_proxy_are_known_by_their_names_and_nobody_is_asked() {
        for form in [ProtocolForm::Delta, ProtocolForm::Sotw] {
            let mut watches = SecretWatches::default();
            let names = ["file-root:/ca", "file-root:system~/crl", "file-cert:/c~/k"];
            let strange = ["file-cert:/c", NAME];
            let asked: Vec<_> = names.iter().chain(&strange).copied().collect();
            watches.on_request(form, &request(&asked, "")).expect("taken");
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
    fn an_answer_is_one_once_and_a_refusal_is_kept() {
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
