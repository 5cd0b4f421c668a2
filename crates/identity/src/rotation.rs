//! Keeps the serving certificate, the trust roots and the CA up to date while connections go on.
//!
//! The files are read again every second and compared by content, which sees renames, rewrites and
//! Kubernetes' `..data` swaps alike. A set of files counts once it reads the same twice, so that one still
//! being written is passed over; it is taken as a whole, or the old one stays and the reason is shown.
//! Ends no connection itself: it says by `trust_generation` when those should be looked at again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::member_authority::MemberFiles;
use super::peer::validity;
use super::root_records::NeededRoot;
use super::root_rotation::AuthorityInForce;
use super::tls::ClientCertificates;
use super::{
    APPROVED, Authority, AuthorityForm, AuthorityPem, IdentityError, MemberAuthorities,
    MemberAuthority, NamedRoots, PeerIdentity, RootEvidence, RootFingerprint, RootLife, RootStage,
    RootStanding, StoreTrouble, TrustRoots,
    error::{CertificateProblem, time},
    pem, root_rotation, tls,
};
use strait_base::codes;
use strait_base::task::Supervisor;
use strait_model::{ClusterId, RootBundle};

/// How often the files are read.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// The largest file that is read, in bytes.
const FILE_LENGTH_MAX: u64 = 1 << 20;

/// Where certificates come from.
#[derive(Debug, Clone)]
pub struct CertificateSettings {
    /// The certificate the control plane shows.
    pub serving: Serving,
    /// The roots that clients' certificates must chain to; without it those of the CA.
    pub client_ca: Option<PathBuf>,
    /// The CA.
    pub authority: Option<AuthorityFrom>,
    /// What the mesh config says of roots.
    pub named: watch::Receiver<Arc<NamedRoots>>,
    /// Whether clients need one.
    pub clients: ClientCertificates,
    /// What is known of the CA's roots beside its files.
    pub evidence: RootEvidence,
    /// The folders of the CAs of single members, watched.
    pub members: BTreeMap<ClusterId, PathBuf>,
}

/// The certificate the control plane shows.
#[derive(Debug, Clone)]
pub enum Serving {
    /// Somebody else makes and renews these files.
    Files {
        /// The chain, leaf first.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// Issued by our own CA and renewed at half its life.
    Issued {
        /// DNS names and IP addresses; see [`default_names`].
        names: Vec<String>,
    },
}

/// The CA.
#[derive(Debug, Clone)]
pub enum AuthorityFrom {
    /// A folder with its files, watched.
    Directory(PathBuf),
    /// One that somebody else keeps, and may change: read again whenever it has.
    Followed(watch::Receiver<Arc<FollowedAuthority>>),
    /// A built-in one, from [`super::authority::load_or_create`].
    Stored(AuthorityPem),
}

/// A CA that somebody else keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedAuthority {
    /// Where it is, for messages.
    pub origin: String,
    /// As it stands there, or why it can't be used.
    pub held: Result<AuthorityPem, String>,
    /// The roots whose steps an operator approves of; see [`APPROVED`].
    pub approved: BTreeSet<RootFingerprint>,
}

/// The names proxies know the control plane by (docs/reference/interface.md, `--tls-san`).
pub fn default_names(namespace: &str) -> Vec<String> {
    let services = ["strait", "istiod"].map(|name| format!("{name}.{namespace}.svc"));
    services.into_iter().chain(["localhost", "127.0.0.1", "::1"].map(str::to_owned)).collect()
}

/// What is in force now. Immutable: each change is a new value in the channel.
#[derive(Debug, Clone)]
pub struct ServerIdentity {
    /// To accept connections with.
    pub server_config: Arc<ServerConfig>,
    /// Whom we believe.
    pub trust: Arc<TrustRoots>,
    /// Counts the changes of `trust`. When it moves, every connection must be asked [`Self::still_trusts`].
    pub trust_generation: u64,
    /// What signs, if anything does.
    pub authority: Option<Arc<Authority>>,
    /// What signs for single members, in its place.
    pub members: Arc<MemberAuthorities>,
    /// When the serving certificate ends.
    pub serving_not_after: SystemTime,
    /// Why something newer is not in force, or will soon not work.
    pub problem: Option<CertificateProblem>,
    certificate: Arc<CertifiedKey>,
    renew_at: Option<SystemTime>,
    /// What workloads are to believe, and since when, as far as this process knows.
    bundle: Option<(Arc<RootBundle>, SystemTime)>,
    evidence: RootEvidence,
    /// Roots that are in the files no more, and may not go yet.
    kept: Vec<NeededRoot>,
    /// What signs for single members, without the rest that is known of it.
    members_sign: Arc<[Arc<Authority>]>,
}

impl ServerIdentity {
    /// What workloads are to believe: the CA's roots and all that we believe ourselves. None without a CA: then
    /// somebody else gives workloads their certificates, and the roots with them.
    pub fn root_bundle(&self) -> Option<&Arc<RootBundle>> {
        self.bundle.as_ref().map(|(bundle, _)| bundle)
    }

    /// What is known of the CA's roots beside its files.
    pub fn evidence(&self) -> &RootEvidence {
        &self.evidence
    }

    /// The CA, and what is known of its roots; none without a CA.
    fn in_force(&self) -> Option<AuthorityInForce<'_>> {
        let (authority, bundle) = (self.authority.as_ref()?, self.root_bundle()?);
        let (evidence, kept, members) = (&self.evidence, &*self.kept, &*self.members_sign);
        Some(AuthorityInForce { authority, bundle, evidence, kept, members })
    }

    fn with_members(self, members: Arc<MemberAuthorities>) -> Self {
        let signing = members.values().filter_map(|member| member.authority.clone());
        Self { members_sign: signing.collect(), members, ..self }
    }

    /// Whether other roots are to be kept now than those that are: their time has come, or another replica knows more.
    fn keeps_others(
        &self,
        settings: &CertificateSettings,
        files: &CertificateFiles,
        now: SystemTime,
    ) -> bool {
        let Some(authority) = &self.authority else { return false };
        let needed = self.evidence.ledger.needed(authority.roots(), now);
        let approved = if needed.is_empty() { BTreeSet::new() } else { files.approved(settings) };
        self.kept.iter().any(|root| root.until <= now)
            || needed.iter().any(|root| !approved.contains(&root.fingerprint))
    }

    /// How each root of the CA fares, that which signs first; none without a CA.
    pub fn root_standings(&self, now: SystemTime) -> Vec<RootStanding> {
        self.in_force().map(|in_force| in_force.standings(now)).unwrap_or_default()
    }

    /// How long the roots of the CA live; none without a CA.
    pub fn root_lives(&self) -> Vec<RootLife> {
        let roots = self.authority.iter().flat_map(|authority| authority.roots().certificates());
        roots.filter_map(|der| RootLife::of(der)).collect()
    }

    /// Whether the bundle may have more than what the chain ended with that `peer` was last given: it has roots that
    /// no chain ends with, or is younger than the peer's certificate. Of who shows none it is not known.
    pub fn has_news_for(&self, peer: Option<&PeerIdentity>) -> bool {
        let (Some(authority), Some((bundle, since))) = (&self.authority, &self.bundle) else {
            return false;
        };
        let issued = peer.and_then(PeerIdentity::issued);
        bundle.certificates.len() > authority.roots().len()
            || issued.is_none_or(|issued| issued <= *since)
    }

    /// Whether a connected peer would be let in again at `now`.
    pub fn still_trusts(&self, peer: &PeerIdentity, now: SystemTime) -> bool {
        self.trust.authenticate(peer.chain(), now).is_ok()
    }

    /// What the webhook listens with: the serving certificate, for callers that show none.
    ///
    /// # Errors
    /// Never in practice: the certificate serves already.
    pub fn webhook_config(&self) -> Result<Arc<ServerConfig>, IdentityError> {
        tls::public_server_config(&self.certificate)
    }
}

/// Reads everything once, then keeps it up to date in a task of `tasks` until those are stopped.
///
/// # Errors
/// Whatever is wrong with the first set: there is no older one to keep.
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
    // A watch holds the latest value only: it can't be full.
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
                rotation.tell_root_ends(&current, SystemTime::now());
                if let Some(next) = rotation.apply(&settings, files, &current, SystemTime::now()) {
                    sender.send_replace(Arc::new(next));
                }
            }
        }
    });
    Ok(receiver)
}

/// What was read, and whether it can be believed to be whole.
struct Rotation {
    applied: CertificateFiles,
    last_read: CertificateFiles,
    /// How near the end of a root was when that was last told.
    told: RootStage,
}

impl Rotation {
    fn new(applied: CertificateFiles) -> Self {
        Self { last_read: applied.clone(), applied, told: RootStage::Fine }
    }

    /// Tells of the root whose end is nearest, once at each stage.
    fn tell_root_ends(&mut self, current: &ServerIdentity, now: SystemTime) {
        let lives = current.root_lives();
        let nearest = lives.iter().max_by_key(|life| life.stage(now));
        let stage = nearest.map_or(RootStage::Fine, |life| life.stage(now));
        if let Some(life) = nearest.filter(|_| stage > self.told) {
            warn!(
                code = codes::ROOT_ENDS.id,
                root = life.subject,
                ends = %time(life.ends),
                "a root of the CA ends; rotate to another in time"
            );
        }
        self.told = stage;
    }

    /// Takes what was just read; returns what shall be in force from now on, if that is something new.
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
        // Also where the mesh's files are refused: a member is cut whatever else is wrong.
        let base = next.as_ref().unwrap_or(current);
        match next_members(settings, &self.last_read, base, now) {
            Some(members) => Some(base.clone().with_members(members)),
            None => next,
        }
    }

    /// The same of all but the CAs of members.
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
                    Some(CertificateProblem::of(&fault, current.problem.as_ref(), now)),
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
                Err(fault) => Some(CertificateProblem::of(&fault, base.problem.as_ref(), now)),
            }
        } else if settled {
            // The files are those in force; what can still be wrong is that their time has passed, or has not come.
            let lasting = expired(base, now).or_else(|| root_rotation::kept(&base.kept));
            lasting.map(|fault| CertificateProblem::of(&fault, base.problem.as_ref(), now))
        } else {
            base.problem.clone()
        };
        with_problem(base, problem).or(renewed)
    }
}

/// `current` with this problem, unless that is what it has.
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
            %message,
            valid_until = %time(current.serving_not_after),
            "certificates need attention; what was in force stays so"
        ),
        None => info!("certificates are in order again"),
    }
    Some(ServerIdentity { problem, ..current.clone() })
}

fn expired(current: &ServerIdentity, now: SystemTime) -> Option<IdentityError> {
    let leaf = current.certificate.cert.first()?;
    let (not_before, not_after) = validity(leaf)?;
    let origin = "force".to_owned();
    (not_after < now).then_some(IdentityError::NotValidNow { origin, not_before, not_after })
}

fn report(old: &ServerIdentity, new: &ServerIdentity) {
    info!(
        valid_until = %time(new.serving_not_after),
        roots = new.trust.len(),
        trust_changed = new.trust_generation != old.trust_generation,
        "certificates reloaded"
    );
    if shares_none(old, new) {
        warn!(
            code = "STR0708",
            "no root of the old set is in the new one: workloads that were not given the new roots turn away what \
             leads to them; to rotate without that, keep both for a while"
        );
    }
}

/// Whether no root of before is in the files any more; one that is kept without them is not.
fn shares_none(old: &ServerIdentity, new: &ServerIdentity) -> bool {
    let is_kept = |der: &Vec<u8>| {
        let fingerprint = RootFingerprint::of(der);
        new.kept.iter().any(|kept| kept.fingerprint == fingerprint)
    };
    let stays = |der: &Vec<u8>| old.trust.certificates().any(|one| one == der);
    !new.trust.certificates().any(|der| stays(der) && !is_kept(der))
}

/// `current` with a fresh certificate of our own, where that is due. By the CA in force: a CA directory
/// that is broken for a while must not cost us the certificate.
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
    (renew_at <= now).then(|| {
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

/// When the first certificate of the chain to end ends.
fn not_after(certificate: &CertifiedKey) -> Option<SystemTime> {
    certificate.cert.iter().filter_map(|one| Some(validity(one)?.1)).min()
}

/// Notes which roots workloads are given now, and which sign. The certificate that we serve with keeps none: it is issued
/// anew where its root goes.
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

/// Makes a whole identity from a whole set of files.
fn build(
    settings: &CertificateSettings,
    files: &CertificateFiles,
    current: Option<&ServerIdentity>,
    now: SystemTime,
) -> Result<ServerIdentity, IdentityError> {
    let authority = match &settings.authority {
        Some(AuthorityFrom::Directory(path)) => {
            let read = |name| files.contents(&path.join(name)).map(<[u8]>::to_vec);
            let kept = AuthorityPem::of_parts(path, read)?;
            Some(Authority::new(&kept, &path.display().to_string(), now)?)
        }
        Some(AuthorityFrom::Followed(_)) => {
            let followed = files.followed.as_ref().ok_or(IdentityError::NoAuthority)?;
            let kept = followed.held.as_ref().map_err(|reason| IdentityError::Store {
                reason: reason.clone(),
                trouble: StoreTrouble::Unusable,
            })?;
            Some(Authority::new(kept, &followed.origin, now)?)
        }
        Some(AuthorityFrom::Stored(kept)) => Some(Authority::new(kept, "the built-in CA", now)?),
        None => None,
    };
    let approved = files.approved(settings);
    if let (Some(in_force), Some(next)) = (current.and_then(ServerIdentity::in_force), &authority) {
        in_force.may_pass_to(next, &approved, now)?;
    }
    let (authority, kept) = authority
        .map(|authority| keep_needed(authority, &settings.evidence, &approved, now))
        .unzip();
    let (authority, kept) = (authority.map(Arc::new), kept.unwrap_or_default());

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

    let trust = trust.with_named(&files.named, now);
    let bundle = authority.as_ref().map(|authority| {
        let new = bundle(authority.roots(), &trust);
        match current.and_then(|current| current.bundle.clone()) {
            Some((held, since)) if *held == new => (held, since),
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
        serving_not_after: not_after(&certificate).unwrap_or(now),
        members: current.map(|current| Arc::clone(&current.members)).unwrap_or_default(),
        members_sign: current.map(|current| Arc::clone(&current.members_sign)).unwrap_or_default(),
        problem: None,
        certificate,
        renew_at,
        bundle,
        evidence: settings.evidence.clone(),
        kept,
    })
}

/// What signs for single members by these `files`, where that is something else than `base` has.
fn next_members(
    settings: &CertificateSettings,
    files: &CertificateFiles,
    base: &ServerIdentity,
    now: SystemTime,
) -> Option<Arc<MemberAuthorities>> {
    let (mesh, before) = (base.in_force()?, &base.members);
    let next: MemberAuthorities = settings
        .members
        .iter()
        .map(|(member, directory)| {
            let (files, before) = (files.of_member(directory), before.get(member));
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

/// The CA with those roots beside its own that can't go yet, and these.
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

/// The certificate in force for as long as it is young and believed, else a new one.
///
/// So a new CA does not change the serving certificate in the same step as the roots: proxies first get
/// to know the new root, and meet the new certificate at the next renewal.
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
    let left = issued.chain.not_after().duration_since(now).unwrap_or_default();
    let chain = issued.chain.certificates().to_vec();
    let origins = ["the issued certificate", "the issued key"];
    let certified = tls::certified_key(chain, issued.key_der(), origins, now)?;
    // A clock may be behind by half a day before anybody meets an ended certificate.
    Ok((Arc::new(certified), now + left / 2))
}

/// The contents of all files in use, or why one has none, and what the mesh config says; compared as a whole.
#[derive(Clone, Default, PartialEq, Eq)]
struct CertificateFiles {
    files: BTreeMap<PathBuf, Result<Vec<u8>, ErrorKind>>,
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
        paths.extend(settings.members.values().flat_map(|directory| authority_files(directory)));
        let followed = match &settings.authority {
            Some(AuthorityFrom::Followed(held)) => Some(Arc::clone(&held.borrow())),
            _ => None,
        };
        let read = |path: PathBuf| {
            let contents = read_bounded(&path).map_err(|error| error.kind());
            (path, contents)
        };
        Self {
            files: paths.into_iter().map(read).collect(),
            named: Arc::clone(&settings.named.borrow()),
            followed,
        }
    }

    /// The roots whose steps an operator approves of.
    fn approved(&self, settings: &CertificateSettings) -> BTreeSet<RootFingerprint> {
        match &settings.authority {
            Some(AuthorityFrom::Directory(directory)) => {
                let read = self.contents(&directory.join(APPROVED)).unwrap_or_default();
                RootFingerprint::all_of(&String::from_utf8_lossy(read))
            }
            Some(AuthorityFrom::Followed(_)) => {
                self.followed.as_ref().map(|followed| followed.approved.clone()).unwrap_or_default()
            }
            Some(AuthorityFrom::Stored(_)) | None => BTreeSet::new(),
        }
    }

    /// What is in the folder of a member's CA.
    fn of_member(&self, directory: &Path) -> MemberFiles {
        let read = |name| self.contents(&directory.join(name)).map(<[u8]>::to_vec);
        let is_absent = |name| read(name).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        let mut names =
            [AuthorityForm::Istio, AuthorityForm::Tls].into_iter().flat_map(AuthorityForm::names);
        let held = match !names.all(is_absent) {
            true => AuthorityPem::of_parts(directory, read).map(Some),
            false => Ok(None),
        };
        let approved = read(APPROVED).unwrap_or_default();
        let approved = RootFingerprint::all_of(&String::from_utf8_lossy(&approved));
        MemberFiles { held, approved }
    }

    fn get(&self, path: &Path) -> Result<&[u8], IdentityError> {
        self.contents(path).map_err(|source| IdentityError::Read { path: path.to_owned(), source })
    }

    fn contents(&self, path: &Path) -> std::io::Result<&[u8]> {
        match self.files.get(path) {
            Some(Ok(contents)) => Ok(contents),
            Some(Err(kind)) => Err((*kind).into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }
}

/// All files that the folder of a CA may have.
fn authority_files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let names = [AuthorityForm::Istio, AuthorityForm::Tls].map(AuthorityForm::names);
    names.concat().into_iter().chain([APPROVED]).map(|name| directory.join(name))
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    strait_base::durable::open_file(path)?.take(FILE_LENGTH_MAX).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests;
