//! Rotation of the serving certificate, the trust roots and the CA without closing connections.
//!
//! The files are read every second and compared by content, which detects renames, rewrites and
//! Kubernetes' `..data` swaps. A set of files is used once it has been read twice without a
//! difference, so that incomplete writes are skipped. It is either applied completely, or the old
//! set stays and the reason is reported. This module ends no connection: a change of
//! `trust_generation` tells when connections must be checked again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::member_authority::MemberFiles;
use super::peer::validity;
use super::root_life::ends_soon;
use super::root_records::{NeededRoot, RootConflict, RootRecords};
use super::root_rotation::ActiveAuthority;
use super::tls::ClientCertificates;
use super::{
    APPROVED, Authority, AuthorityForm, AuthorityPem, IdentityError, MemberAuthorities,
    MemberAuthority, NamedRoots, PeerIdentity, RelayIdentity, RootEvidence, RootFingerprint,
    RootLife, RootStage, RootStanding, StoreTrouble, TrustRoots,
    error::{CertificateProblem, time},
    pem, root_rotation, tls,
};
use strait_base::codes;
use strait_base::task::Supervisor;
use strait_model::{ClusterId, RootBundle};

/// Interval of reads.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of bytes read from a file.
const FILE_LENGTH_MAX: u64 = 1 << 20;

/// Sources of the certificates.
#[derive(Debug, Clone)]
pub struct CertificateSettings {
    /// The certificate of the control plane.
    pub serving: Serving,
    /// File of roots that clients' certificates must chain to; the CA's roots if `None`.
    pub client_ca: Option<PathBuf>,
    /// The CA.
    pub authority: Option<AuthorityFrom>,
    /// Roots that the mesh config names.
    pub named: watch::Receiver<Arc<NamedRoots>>,
    /// Whether clients need a certificate.
    pub clients: ClientCertificates,
    /// Evidence about the CA's roots that its files don't contain.
    pub evidence: RootEvidence,
    /// Directory of the CA that signs only for relays, which is watched; the CA if `None`.
    pub relay_authority: Option<PathBuf>,
    /// Directories of members' dedicated CAs, which are watched.
    pub members: BTreeMap<ClusterId, PathBuf>,
}

/// Source of the control plane's certificate.
#[derive(Debug, Clone)]
pub enum Serving {
    /// Files that another tool creates and renews.
    Files {
        /// The chain, leaf first.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// Issued by the CA, and renewed after half of the lifetime.
    Issued {
        /// DNS names and IP addresses; see [`default_names`].
        names: Vec<String>,
    },
}

/// Source of the CA.
#[derive(Debug, Clone)]
pub enum AuthorityFrom {
    /// A directory with its files, which is watched.
    Directory(PathBuf),
    /// A CA that another tool manages and may change; applied on each change.
    Followed(watch::Receiver<Arc<FollowedAuthority>>),
    /// A built-in CA, from [`super::authority::load_or_create`].
    Stored(AuthorityPem),
}

/// A CA that another tool manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedAuthority {
    /// Its location, for messages.
    pub origin: String,
    /// Its content, or the reason why it is invalid.
    pub content: Result<AuthorityPem, String>,
    /// Roots whose steps an operator has approved; see [`APPROVED`].
    pub approved: BTreeSet<RootFingerprint>,
}

/// Returns the names by which proxies address the control plane (docs/reference/interface.md,
/// `--tls-san`).
pub fn default_names(namespace: &str) -> Vec<String> {
    let services = ["strait", "istiod"].map(|name| format!("{name}.{namespace}.svc"));
    services.into_iter().chain(["localhost", "127.0.0.1", "::1"].map(str::to_owned)).collect()
}

/// The active identity. Immutable: each change is a new value in the channel.
#[derive(Debug, Clone)]
pub struct ServerIdentity {
    /// Configuration to accept connections.
    pub server_config: Arc<ServerConfig>,
    /// Roots that clients' certificates must chain to.
    pub trust: Arc<TrustRoots>,
    /// Number of changes of `trust`. When it changes, every connection must be checked with
    /// [`Self::still_trusts`].
    pub trust_generation: u64,
    /// The CA, if there is one.
    pub authority: Option<Arc<Authority>>,
    /// The CA that signs only for relays, if there is one.
    for_relays: Option<Arc<Authority>>,
    /// The CAs of single members, which replace it for them.
    pub members: Arc<MemberAuthorities>,
    /// Expiry of the serving certificate.
    pub serving_not_after: SystemTime,
    /// Why newer certificates are not active, or why the current ones will soon fail.
    pub problem: Option<CertificateProblem>,
    certificate: Arc<CertifiedKey>,
    renew_at: Option<SystemTime>,
    /// Roots that workloads must trust, and the time of their last change in this process.
    bundle: Option<(Arc<RootBundle>, SystemTime)>,
    evidence: RootEvidence,
    /// Roots that are no longer in the files but must not be removed yet.
    retained: Vec<NeededRoot>,
    /// The CAs of members, without their status.
    members_sign: Arc<[Arc<Authority>]>,
}

impl ServerIdentity {
    /// Returns the roots that workloads must trust: the CA's roots and all trusted client roots.
    /// Returns `None` without a CA, because the issuer of workloads' certificates then also
    /// distributes the roots.
    pub fn root_bundle(&self) -> Option<&Arc<RootBundle>> {
        self.bundle.as_ref().map(|(bundle, _)| bundle)
    }

    /// Returns the CA that signs for relays, if there is one.
    pub fn relay_authority(&self) -> Option<&Arc<Authority>> {
        self.for_relays.as_ref().or(self.authority.as_ref())
    }

    /// Returns the roots with which relays verify this control plane, in PEM. They are not known,
    /// and the text is empty, if the serving certificate comes from elsewhere and chains to none of
    /// the roots for clients.
    pub fn serving_roots(&self, now: SystemTime) -> String {
        match &self.authority {
            Some(authority) => authority.roots().to_pem(),
            None if tls::serves(&self.trust, &self.certificate, now) => self.trust.to_pem(),
            None => String::new(),
        }
    }

    /// Returns the evidence about the CA's roots that its files don't contain.
    pub fn evidence(&self) -> &RootEvidence {
        &self.evidence
    }

    /// Returns the active CA with the evidence about its roots, or `None` without a CA.
    fn active(&self) -> Option<ActiveAuthority<'_>> {
        let (authority, bundle) = (self.authority.as_ref()?, self.root_bundle()?);
        let (evidence, retained, members) = (&self.evidence, &*self.retained, &*self.members_sign);
        Some(ActiveAuthority { authority, bundle, evidence, retained, members })
    }

    fn with_members(self, members: Arc<MemberAuthorities>) -> Self {
        let signing = members.values().filter_map(|member| member.authority.clone());
        Self { members_sign: signing.collect(), members, ..self }
    }

    /// Returns whether the set of retained roots must change, because one has expired or another
    /// replica knows of more certificates.
    fn keeps_others(
        &self,
        settings: &CertificateSettings,
        files: &CertificateFiles,
        now: SystemTime,
    ) -> bool {
        let Some(authority) = &self.authority else { return false };
        let needed = self.evidence.ledger.needed(authority.roots(), now);
        let approved = if needed.is_empty() { BTreeSet::new() } else { files.approved(settings) };
        self.retained.iter().any(|root| root.until <= now)
            || needed.iter().any(|root| !approved.contains(&root.fingerprint))
    }

    /// Returns the status of each root of the CA, signing ones first. Empty without a CA.
    pub fn root_standings(&self, now: SystemTime) -> Vec<RootStanding> {
        self.active().map(|active| active.standings(now)).unwrap_or_default()
    }

    /// Returns the conflict of the CA's roots with the roots that workloads have by these records.
    pub fn conflict_with(&self, records: &RootRecords, now: SystemTime) -> Option<RootConflict> {
        let roots = self.authority.as_ref()?.roots();
        let is_retained = |der: &&Vec<u8>| {
            let fingerprint = RootFingerprint::from_der(der);
            self.retained.iter().any(|root| root.fingerprint == fingerprint)
        };
        let own: Vec<_> = roots.certificates().filter(|der| !is_retained(der)).collect();
        RootConflict::find(&own, records, now)
    }

    /// Returns whether the serving certificate ends soon, although it should have been renewed.
    pub fn serving_ends_soon(&self, now: SystemTime) -> bool {
        let leaf = self.certificate.cert.first().and_then(validity);
        leaf.is_some_and(|(begins, _)| ends_soon((begins, self.serving_not_after), now))
    }

    /// Returns the lifetimes of the CA's roots. Empty without a CA.
    pub fn root_lives(&self) -> Vec<RootLife> {
        let roots = self.authority.iter().flat_map(|authority| authority.roots().certificates());
        roots.filter_map(|der| RootLife::read(der)).collect()
    }

    /// Returns whether the bundle may differ from the roots that `peer` received with its last
    /// certificate: the bundle has roots beyond the CA's, or is younger than the certificate.
    /// Assumes a difference if the peer has no certificate.
    pub fn has_news_for(&self, peer: Option<&PeerIdentity>) -> bool {
        let (Some(authority), Some((bundle, since))) = (&self.authority, &self.bundle) else {
            return false;
        };
        let issued = peer.and_then(PeerIdentity::issued);
        bundle.certificates.len() > authority.roots().len()
            || issued.is_none_or(|issued| issued <= *since)
    }

    /// Returns whether a connected peer would be accepted again at `now`.
    pub fn still_trusts(&self, peer: &PeerIdentity, now: SystemTime) -> bool {
        self.trust.authenticate(peer.chain(), now).is_ok()
    }

    /// Returns whether a connected relay would be accepted again at `now`.
    pub fn still_trusts_relay(&self, relay: &RelayIdentity, now: SystemTime) -> bool {
        self.trust.authenticate_relay(relay.chain(), now).is_ok()
    }

    /// Returns the TLS configuration of the webhook: the serving certificate, without client
    /// certificates.
    ///
    /// # Errors
    /// Never in practice, because the certificate is already in use.
    pub fn webhook_config(&self) -> Result<Arc<ServerConfig>, IdentityError> {
        tls::public_server_config(&self.certificate)
    }
}

/// Reads all files once, then keeps the identity up to date in a task of `tasks` until the tasks
/// are stopped.
///
/// # Errors
/// Any error in the first set of files, because there is no older one to use instead.
pub fn start(
    settings: CertificateSettings,
    interval: Duration,
    tasks: &Supervisor,
) -> Result<watch::Receiver<Arc<ServerIdentity>>, IdentityError> {
    let files = CertificateFiles::read(&settings);
    let now = SystemTime::now();
    let mut first = build(&settings, &files, None, now)?;
    remember(&settings, None, &first, now);
    if let Some(members) = next_members(&settings, &files, &first, now) {
        first = first.with_members(members);
    }
    // A watch stores only the latest value, so it is never full.
    let (sender, receiver) = watch::channel(Arc::new(first));
    let sender = Arc::new(sender);
    tasks.spawn_restarting("certificate rotation", interval, move || {
        let settings = settings.clone();
        let sender = Arc::clone(&sender);
        let mut rotation = Rotation::new(files.clone());
        async move {
            loop {
                tokio::time::sleep(interval).await;
                let read = settings.clone();
                let Ok(files) =
                    tokio::task::spawn_blocking(move || CertificateFiles::read(&read)).await
                else {
                    continue;
                };
                let current = Arc::clone(&sender.borrow());
                rotation.log_root_expiry(&current, SystemTime::now());
                if let Some(next) = rotation.apply(&settings, files, &current, SystemTime::now()) {
                    sender.send_replace(Arc::new(next));
                }
            }
        }
    });
    Ok(receiver)
}

/// State of the rotation: the applied files, and the last files that were read.
struct Rotation {
    applied: CertificateFiles,
    last_read: CertificateFiles,
    /// Stage of root expiry that was last logged.
    logged_stage: RootStage,
}

impl Rotation {
    fn new(applied: CertificateFiles) -> Self {
        Self { last_read: applied.clone(), applied, logged_stage: RootStage::Fine }
    }

    /// Logs the root that expires first, once per stage.
    fn log_root_expiry(&mut self, current: &ServerIdentity, now: SystemTime) {
        let lives = current.root_lives();
        let nearest = lives.iter().max_by_key(|life| life.stage(now));
        let stage = nearest.map_or(RootStage::Fine, |life| life.stage(now));
        if let Some(life) = nearest.filter(|_| stage > self.logged_stage) {
            warn!(
                code = codes::ROOT_ENDS.id,
                root = life.subject,
                ends = %time(life.ends),
                "a root of the CA expires soon; rotate to another root before it expires"
            );
        }
        self.logged_stage = stage;
    }

    /// Processes new files. Returns the identity to use from now on, if it changes.
    fn apply(
        &mut self,
        settings: &CertificateSettings,
        files: CertificateFiles,
        current: &ServerIdentity,
        now: SystemTime,
    ) -> Option<ServerIdentity> {
        let settled = files == self.last_read;
        let next = self.apply_to_mesh(settings, files, current, now);
        if !settled {
            return next;
        }
        // Applies even if the mesh's files are invalid: a member can be cut off regardless of other
        // faults.
        let base = next.as_ref().unwrap_or(current);
        match next_members(settings, &self.last_read, base, now) {
            Some(members) => Some(base.clone().with_members(members)),
            None => next,
        }
    }

    /// Processes new files except for the CAs of members.
    fn apply_to_mesh(
        &mut self,
        settings: &CertificateSettings,
        files: CertificateFiles,
        current: &ServerIdentity,
        now: SystemTime,
    ) -> Option<ServerIdentity> {
        let settled = files == self.last_read;
        let changed =
            settled && (files != self.applied || current.keeps_others(settings, &files, now));
        self.last_read = files;

        let renewed = match renew(settings, current, now).transpose() {
            Ok(renewed) => renewed,
            Err(fault) => {
                return with_problem(
                    current,
                    Some(CertificateProblem::new(&fault, current.problem.as_ref(), now)),
                );
            }
        };
        let base = renewed.as_ref().unwrap_or(current);
        let problem = if changed {
            match build(settings, &self.last_read, Some(base), now) {
                Ok(next) => {
                    self.applied = self.last_read.clone();
                    remember(settings, Some(base), &next, now);
                    report(current, &next);
                    return Some(next);
                }
                Err(fault) => Some(CertificateProblem::new(&fault, base.problem.as_ref(), now)),
            }
        } else if settled {
            // The files are the active ones; the only remaining fault is that they have expired or
            // are not valid yet.
            let lasting =
                expired(base, now).or_else(|| root_rotation::withdrawn_too_early(&base.retained));
            lasting.map(|fault| CertificateProblem::new(&fault, base.problem.as_ref(), now))
        } else {
            base.problem.clone()
        };
        with_problem(base, problem).or(renewed)
    }
}

/// Returns `current` with this problem, or `None` if it already has it.
fn with_problem(
    current: &ServerIdentity,
    problem: Option<CertificateProblem>,
) -> Option<ServerIdentity> {
    if current.problem == problem {
        return None;
    }
    match &problem {
        Some(CertificateProblem { code, message, .. }) => error!(
            code,
            fact = message,
            valid_until = %time(current.serving_not_after),
            "certificates need attention; the previous ones stay active"
        ),
        None => info!("certificates are valid again"),
    }
    Some(ServerIdentity { problem, ..current.clone() })
}

fn expired(current: &ServerIdentity, now: SystemTime) -> Option<IdentityError> {
    let leaf = current.certificate.cert.first()?;
    let (not_before, not_after) = validity(leaf)?;
    let origin = "use".to_owned();
    let is_valid = (not_before..=not_after).contains(&now);
    (!is_valid).then_some(IdentityError::NotValidNow { origin, not_before, not_after })
}

fn report(old: &ServerIdentity, new: &ServerIdentity) {
    info!(
        valid_until = %time(new.serving_not_after),
        roots = new.trust.len(),
        trust_changed = new.trust_generation != old.trust_generation,
        "certificates reloaded"
    );
    if replaces_all_roots(old, new) {
        warn!(
            code = "STR0708",
            "the new roots contain none of the old ones: workloads without the new roots reject certificates \
             that chain to them; to avoid this, keep both sets for a while"
        );
    }
}

/// Returns whether no previous root is in the files any more, ignoring retained ones.
fn replaces_all_roots(old: &ServerIdentity, new: &ServerIdentity) -> bool {
    let is_retained = |der: &Vec<u8>| {
        let fingerprint = RootFingerprint::from_der(der);
        new.retained.iter().any(|root| root.fingerprint == fingerprint)
    };
    let stays = |der: &Vec<u8>| old.trust.certificates().any(|one| one == der);
    !new.trust.certificates().any(|der| stays(der) && !is_retained(der))
}

/// Renews the issued serving certificate if it is due, or if it is not valid yet because the clock
/// was set back. Uses the active CA, so that a temporarily invalid CA directory does not prevent the
/// renewal.
fn renew(
    settings: &CertificateSettings,
    current: &ServerIdentity,
    now: SystemTime,
) -> Option<Result<ServerIdentity, IdentityError>> {
    let (Serving::Issued { names }, Some(authority), Some(renew_at)) =
        (&settings.serving, &current.authority, current.renew_at)
    else {
        return None;
    };
    let leaf = current.certificate.cert.first().and_then(validity);
    let is_early = leaf.is_some_and(|(begins, _)| now < begins);
    (renew_at <= now || is_early).then(|| {
        let (certificate, renew_at) = issued(authority, names, Some(current), now)?;
        Ok(ServerIdentity {
            server_config: tls::server_config(&certificate, &current.trust, settings.clients)?,
            serving_not_after: not_after(&certificate).unwrap_or(now),
            certificate,
            renew_at: Some(renew_at),
            ..current.clone()
        })
    })
}

/// Returns the earliest expiry in the chain.
fn not_after(certificate: &CertifiedKey) -> Option<SystemTime> {
    certificate.cert.iter().filter_map(|one| Some(validity(one)?.1)).min()
}

/// Records the roots that workloads receive now, and the roots that sign. The serving certificate
/// needs no record: it is issued again when its root is removed.
fn remember(
    settings: &CertificateSettings,
    before: Option<&ServerIdentity>,
    next: &ServerIdentity,
    now: SystemTime,
) {
    let Some(authority) = &next.authority else { return };
    let ledger = &settings.evidence.ledger;
    let given = before.and_then(|before| before.authority.as_ref());
    ledger.given(authority.roots(), given.map(|given| &**given.roots()), now);
    ledger.signs(authority.leading(), now);
}

/// Builds a complete identity from a complete set of files.
fn build(
    settings: &CertificateSettings,
    files: &CertificateFiles,
    current: Option<&ServerIdentity>,
    now: SystemTime,
) -> Result<ServerIdentity, IdentityError> {
    let authority = match &settings.authority {
        Some(AuthorityFrom::Directory(path)) => Some(files.authority(path, now)?),
        Some(AuthorityFrom::Followed(_)) => {
            let followed = files.followed.as_ref().ok_or(IdentityError::NoAuthority)?;
            let content = followed.content.as_ref().map_err(|reason| IdentityError::Store {
                reason: reason.clone(),
                trouble: StoreTrouble::Unusable,
            })?;
            Some(Authority::new(content, &followed.origin, now)?)
        }
        Some(AuthorityFrom::Stored(files)) => Some(Authority::new(files, "the built-in CA", now)?),
        None => None,
    };
    let approved = files.approved(settings);
    if let (Some(active), Some(next)) = (current.and_then(ServerIdentity::active), &authority) {
        active.may_pass_to(next, &approved, now)?;
    }
    let (authority, retained) = authority
        .map(|authority| keep_needed(authority, &settings.evidence, &approved, now))
        .unzip();
    let (authority, retained) = (authority.map(Arc::new), retained.unwrap_or_default());

    let trust = match (&settings.client_ca, &authority) {
        (Some(path), _) => {
            TrustRoots::from_pem(files.get(path)?, &path.display().to_string(), now)?
        }
        (None, Some(authority)) => TrustRoots::clone(authority.roots()),
        (None, None) => return Err(IdentityError::NoAuthority),
    };

    let (certificate, renew_at) = match (&settings.serving, &authority) {
        (Serving::Files { certificate, key }, _) => {
            let origins = [certificate, key].map(|path| path.display().to_string());
            let chain = pem::certificates(files.get(certificate)?, &origins[0])?;
            let key = pem::private_key(files.get(key)?, &origins[1])?;
            let certified = tls::certified_key(chain, key, origins.each_ref().map(|o| &**o), now)?;
            (Arc::new(certified), None)
        }
        (Serving::Issued { names }, Some(authority)) => {
            let (certificate, renew_at) = issued(authority, names, current, now)?;
            (certificate, Some(renew_at))
        }
        (Serving::Issued { .. }, None) => return Err(IdentityError::NoAuthority),
    };

    let mut trust = trust.with_named(&files.named, now);
    let for_relays = relay_authority(settings, files, authority.as_deref(), &trust, now)?;
    if let Some(relays) = &for_relays {
        trust = trust.with_relays(relays.roots());
    }
    let bundle = authority.as_ref().map(|authority| {
        let new = bundle(authority.roots(), &trust);
        match current.and_then(|current| current.bundle.clone()) {
            Some((current, since)) if *current == new => (current, since),
            _ => (Arc::new(new), now),
        }
    });
    let (trust, trust_generation) = match current {
        Some(current) if *current.trust == trust => {
            (Arc::clone(&current.trust), current.trust_generation)
        }
        Some(current) => (Arc::new(trust), current.trust_generation + 1),
        None => (Arc::new(trust), 0),
    };
    Ok(ServerIdentity {
        server_config: tls::server_config(&certificate, &trust, settings.clients)?,
        trust,
        trust_generation,
        authority,
        for_relays: for_relays.map(Arc::new),
        serving_not_after: not_after(&certificate).unwrap_or(now),
        members: current.map(|current| Arc::clone(&current.members)).unwrap_or_default(),
        members_sign: current.map(|current| Arc::clone(&current.members_sign)).unwrap_or_default(),
        problem: None,
        certificate,
        renew_at,
        bundle,
        evidence: settings.evidence.clone(),
        retained,
    })
}

/// Returns the CA that signs only for relays, if there is one.
///
/// # Errors
/// If its files are invalid, or it could also sign for clients that `mesh` or `trust` accept.
fn relay_authority(
    settings: &CertificateSettings,
    files: &CertificateFiles,
    mesh: Option<&Authority>,
    trust: &TrustRoots,
    now: SystemTime,
) -> Result<Option<Authority>, IdentityError> {
    let Some(path) = &settings.relay_authority else { return Ok(None) };
    let authority = files.authority(path, now)?;
    let mut trusted =
        trust.certificates().chain(mesh.iter().flat_map(|mesh| mesh.roots().certificates()));
    let is_shared =
        trusted.any(|root| authority.roots().contains_equivalent(&root.as_slice().into()));
    match is_shared {
        true => Err(IdentityError::SharedRelayRoot { path: path.clone() }),
        false => Ok(Some(authority)),
    }
}

/// Returns the CAs of members for these `files`, if they differ from those in `base`.
fn next_members(
    settings: &CertificateSettings,
    files: &CertificateFiles,
    base: &ServerIdentity,
    now: SystemTime,
) -> Option<Arc<MemberAuthorities>> {
    let (mesh, before) = (base.active()?, &base.members);
    let next: MemberAuthorities = settings
        .members
        .iter()
        .map(|(member, directory)| {
            let (files, before) = (files.member_files(directory), before.get(member));
            let next = MemberAuthority::next(member, directory, files, before, mesh, now);
            (member.clone(), next)
        })
        .collect();
    let is_new = next.iter().any(|(member, next)| next.differs_from(before.get(member)));
    if is_new {
        let signing = next.values().filter_map(|member| member.authority.as_ref());
        signing.for_each(|authority| settings.evidence.ledger.signs(authority.leading(), now));
    }
    is_new.then(|| Arc::new(next))
}

/// Adds the roots to the CA that must not be removed yet, and returns them.
fn keep_needed(
    authority: Authority,
    evidence: &RootEvidence,
    approved: &BTreeSet<RootFingerprint>,
    now: SystemTime,
) -> (Authority, Vec<NeededRoot>) {
    evidence.ledger.adopt_shared(authority.roots());
    let mut needed = evidence.ledger.needed(authority.roots(), now);
    needed.retain(|root| !approved.contains(&root.fingerprint));
    let certificates: Vec<_> = needed.iter().map(|root| root.certificate.clone()).collect();
    (authority.with_roots(&certificates, now), needed)
}

fn bundle(authority: &TrustRoots, trust: &TrustRoots) -> RootBundle {
    let certificates: BTreeSet<Vec<u8>> =
        authority.certificates().chain(trust.certificates()).cloned().collect();
    let pem: String = certificates.iter().map(|one| pem::encode(&one.as_slice().into())).collect();
    RootBundle { pem: pem.into(), certificates }
}

/// Returns the active certificate while it is young and trusted, otherwise a new one.
///
/// As a result, a new CA does not change the serving certificate in the same step as the roots:
/// proxies first receive the new root, and see the new certificate at the next renewal.
fn issued(
    authority: &Authority,
    names: &[String],
    current: Option<&ServerIdentity>,
    now: SystemTime,
) -> Result<(Arc<CertifiedKey>, SystemTime), IdentityError> {
    if let Some(current) = current
        && let Some(renew_at) = current.renew_at
        && now < renew_at
        && tls::serves(authority.roots(), &current.certificate, now)
    {
        return Ok((Arc::clone(&current.certificate), renew_at));
    }
    let issued = authority.issue_serving(names, now)?;
    let remaining = issued.chain.not_after().duration_since(now).unwrap_or_default();
    let chain = issued.chain.certificates().to_vec();
    let origins = ["the issued certificate", "the issued key"];
    let certified = tls::certified_key(chain, issued.key_der(), origins, now)?;
    // Clocks may differ by half a day before a client sees an expired certificate.
    Ok((Arc::new(certified), now + remaining / 2))
}

/// Why a file cannot be read: the kind, and the error code of the system.
type ReadError = (ErrorKind, Option<i32>);

/// The contents of all files in use or the error of reading them, and the mesh config's roots.
/// Compared as a whole.
#[derive(Clone, Default, PartialEq, Eq)]
struct CertificateFiles {
    files: BTreeMap<PathBuf, Result<Vec<u8>, ReadError>>,
    named: Arc<NamedRoots>,
    followed: Option<Arc<FollowedAuthority>>,
}

impl CertificateFiles {
    fn read(settings: &CertificateSettings) -> Self {
        let mut paths = Vec::new();
        if let Serving::Files { certificate, key } = &settings.serving {
            paths.extend([certificate.clone(), key.clone()]);
        }
        paths.extend(settings.client_ca.clone());
        if let Some(AuthorityFrom::Directory(directory)) = &settings.authority {
            paths.extend(authority_files(directory));
        }
        paths.extend(
            settings.relay_authority.iter().flat_map(|directory| authority_files(directory)),
        );
        paths.extend(settings.members.values().flat_map(|directory| authority_files(directory)));
        let followed = match &settings.authority {
            Some(AuthorityFrom::Followed(followed)) => Some(Arc::clone(&followed.borrow())),
            _ => None,
        };
        let read = |path: PathBuf| {
            let contents =
                read_bounded(&path).map_err(|error| (error.kind(), error.raw_os_error()));
            (path, contents)
        };
        Self {
            files: paths.into_iter().map(read).collect(),
            named: Arc::clone(&settings.named.borrow()),
            followed,
        }
    }

    /// Returns the roots whose steps an operator has approved.
    fn approved(&self, settings: &CertificateSettings) -> BTreeSet<RootFingerprint> {
        match &settings.authority {
            Some(AuthorityFrom::Directory(directory)) => {
                let read = self.contents(&directory.join(APPROVED)).unwrap_or_default();
                RootFingerprint::parse_all(&String::from_utf8_lossy(read))
            }
            Some(AuthorityFrom::Followed(_)) => {
                self.followed.as_ref().map(|followed| followed.approved.clone()).unwrap_or_default()
            }
            Some(AuthorityFrom::Stored(_)) | None => BTreeSet::new(),
        }
    }

    /// Returns the CA in a directory.
    fn authority(&self, directory: &Path, now: SystemTime) -> Result<Authority, IdentityError> {
        let read = |name| self.contents(&directory.join(name)).map(<[u8]>::to_vec);
        let files = AuthorityPem::read_parts(directory, read)?;
        Authority::new(&files, &directory.display().to_string(), now)
    }

    /// Returns the contents of a member's CA directory.
    fn member_files(&self, directory: &Path) -> MemberFiles {
        let read = |name| self.contents(&directory.join(name)).map(<[u8]>::to_vec);
        let is_absent = |name| read(name).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        let mut names =
            [AuthorityForm::Istio, AuthorityForm::Tls].into_iter().flat_map(AuthorityForm::names);
        let content = match !names.all(is_absent) {
            true => AuthorityPem::read_parts(directory, read).map(Some),
            false => Ok(None),
        };
        let approved = read(APPROVED).unwrap_or_default();
        let approved = RootFingerprint::parse_all(&String::from_utf8_lossy(&approved));
        MemberFiles { content, approved }
    }

    fn get(&self, path: &Path) -> Result<&[u8], IdentityError> {
        self.contents(path).map_err(|source| IdentityError::Read { path: path.to_owned(), source })
    }

    fn contents(&self, path: &Path) -> io::Result<&[u8]> {
        match self.files.get(path) {
            Some(Ok(contents)) => Ok(contents),
            Some(Err((kind, code))) => {
                Err(code.map_or_else(|| (*kind).into(), io::Error::from_raw_os_error))
            }
            None => Err(ErrorKind::NotFound.into()),
        }
    }
}

/// Returns the paths of all files that the directory of a CA may contain.
fn authority_files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let names = [AuthorityForm::Istio, AuthorityForm::Tls].map(AuthorityForm::names);
    names.concat().into_iter().chain([APPROVED]).map(|name| directory.join(name))
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    strait_base::durable::open_file(path)?.take(FILE_LENGTH_MAX).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests;
