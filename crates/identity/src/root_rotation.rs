//! Progress of a root's replacement, and the steps that must wait. Pure.
//!
//! The phase of a rotation is not stored. It follows from the roots of the CA, the roots that
//! issued certificates chain to, the expiry of each root's last certificate, and the parts of the
//! mesh that are known to have each root (docs/how-to/rotate-certificates.md).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::root_records::{NeededRoot, RootFingerprint, RootLedger, RootRecord};
use super::{Authority, IdentityError, RootLife};
use strait_model::RootBundle;

/// Name of the file in a CA's directory, or of the key in its Secret, in which an operator approves
/// steps despite missing evidence.
pub const APPROVED: &str = "rotation-approved";
/// Maximum number of listed parts that lack a root.
const LISTED: usize = 4;

/// A part of the mesh that is not known to have a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootLack {
    /// Name of the part, for example `cluster east`.
    pub part: String,
    /// The reason, and how it ends.
    pub fact: String,
    /// Whether the lack was observed; otherwise only the operator can judge it.
    pub is_seen: bool,
}

impl fmt::Display for RootLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.part, self.fact)
    }
}

/// Observer of the roots that workloads have.
pub trait RootWitness: fmt::Debug + Send + Sync {
    /// Returns the parts that are not known at `now` to have the root of `record`, which is one of
    /// `bundle`.
    fn lacks(&self, bundle: &RootBundle, record: &RootRecord, now: SystemTime) -> Vec<RootLack>;
}

/// Evidence about roots that the files of the CA don't contain.
#[derive(Debug, Clone)]
pub struct RootEvidence {
    /// Records of issued certificates.
    pub ledger: Arc<RootLedger>,
    /// Observer of the roots that workloads have.
    pub witness: Arc<dyn RootWitness>,
}

impl RootEvidence {
    /// Returns the evidence of a CA that has signed nothing and has no workloads.
    pub fn empty() -> Self {
        #[derive(Debug)]
        struct NoWitness;
        impl RootWitness for NoWitness {
            fn lacks(&self, _: &RootBundle, _: &RootRecord, _: SystemTime) -> Vec<RootLack> {
                Vec::new()
            }
        }
        Self { ledger: Arc::new(RootLedger::empty()), witness: Arc::new(NoWitness) }
    }
}

/// State of a root of the CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootStep {
    /// Certificates issued now chain to it.
    Signs,
    /// Workloads receive it, and some are not known to have it.
    Distribute,
    /// All workloads have it; it may sign.
    Sign,
    /// It no longer signs, but valid certificates chain to it.
    Wait,
    /// It is no longer in the files, but valid certificates chain to it.
    Kept,
    /// No valid certificate chains to it any more; it may be removed.
    Withdraw,
}

impl RootStep {
    /// Returns the name in `/debug/certificates`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Signs => "signs",
            Self::Distribute => "distribute",
            Self::Sign => "sign",
            Self::Wait => "wait",
            Self::Kept => "kept",
            Self::Withdraw => "withdraw",
        }
    }

    /// Returns the number and name of the rotation phase that a root in this state implies, if any.
    pub fn phase(self) -> Option<(u8, &'static str)> {
        match self {
            Self::Signs => None,
            Self::Distribute => Some((1, "distribute")),
            Self::Sign => Some((2, "sign")),
            Self::Wait | Self::Kept => Some((3, "wait")),
            Self::Withdraw => Some((4, "withdraw")),
        }
    }
}

/// Status of a root of the CA.
#[derive(Debug, Clone)]
pub struct RootStanding {
    /// Its fingerprint.
    pub fingerprint: RootFingerprint,
    /// Its subject and expiry.
    pub life: RootLife,
    /// Its state.
    pub step: RootStep,
    /// Its record.
    pub record: Option<RootRecord>,
    /// The parts of the mesh that are not known to have it.
    pub lacks: Vec<RootLack>,
}

/// An active CA, with the evidence about its roots.
#[derive(Clone, Copy)]
pub(super) struct ActiveAuthority<'a> {
    pub(super) authority: &'a Authority,
    /// The roots that workloads receive.
    pub(super) bundle: &'a RootBundle,
    pub(super) evidence: &'a RootEvidence,
    /// Roots that are no longer in the files.
    pub(super) retained: &'a [NeededRoot],
    /// The dedicated CAs of members.
    pub(super) members: &'a [Arc<Authority>],
}

impl ActiveAuthority<'_> {
    /// Returns the status of the roots at `now`, signing ones first.
    pub(super) fn standings(self, now: SystemTime) -> Vec<RootStanding> {
        let records = self.evidence.ledger.records();
        let standing = |der: &Vec<u8>| {
            let (life, fingerprint) = (RootLife::read(der)?, RootFingerprint::from_der(der));
            let record = records.get(&fingerprint).cloned();
            let last_ends = record.as_ref().and_then(RootRecord::last_ends);
            let (step, lacks) = match last_ends {
                _ if self.signs_below(&fingerprint) => (RootStep::Signs, Vec::new()),
                _ if self.retained.iter().any(|root| root.fingerprint == fingerprint) => {
                    (RootStep::Kept, Vec::new())
                }
                Some(ends) if ends > now => (RootStep::Wait, Vec::new()),
                Some(_) => (RootStep::Withdraw, Vec::new()),
                None => {
                    let lacks = record.as_ref().map(|record| self.lacks(record, now));
                    let lacks = lacks.unwrap_or_default();
                    let step = if lacks.is_empty() { RootStep::Sign } else { RootStep::Distribute };
                    (step, lacks)
                }
            };
            Some(RootStanding { fingerprint, life, step, record, lacks })
        };
        let roots = self.authority.roots();
        let mut standings: Vec<_> = roots.certificates().filter_map(standing).collect();
        standings.sort_by(|a, b| (a.step, &a.fingerprint).cmp(&(b.step, &b.fingerprint)));
        standings
    }

    /// Checks that `next` may replace the active CA. A change of all roots at once is allowed, and
    /// parts that can't be observed don't matter, because the operator has judged both.
    ///
    /// # Errors
    /// If some part of the mesh is observed to lack each root that `next` chains to, and no root is
    /// approved.
    pub(super) fn may_pass_to(
        self,
        next: &Authority,
        approved: &BTreeSet<RootFingerprint>,
        now: SystemTime,
    ) -> Result<(), IdentityError> {
        let is_approved = next.leading().iter().any(|root| approved.contains(root));
        if is_approved || next.shares_root_with(self.authority) {
            return Ok(());
        }
        let records = self.evidence.ledger.records();
        let given = self.authority.roots().certificates();
        let given: BTreeSet<_> = given.map(|der| RootFingerprint::from_der(der)).collect();
        if !next.roots().certificates().any(|der| given.contains(&RootFingerprint::from_der(der))) {
            return Ok(());
        }
        let mut refusal = None;
        for root in next.leading() {
            let mut lacks = match records.get(root).filter(|_| given.contains(root)) {
                Some(record) => self.lacks(record, now),
                None => vec![RootLack {
                    part: "all parts".to_owned(),
                    fact: "it was not among the roots before; first add it to them without other changes".to_owned(),
                    is_seen: true,
                }],
            };
            lacks.retain(|lack| lack.is_seen);
            if lacks.is_empty() {
                return Ok(());
            }
            let (root, lacks) = (root.to_string(), listed(&lacks));
            refusal.get_or_insert(IdentityError::SignsTooEarly { root, lacks });
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Returns whether certificates of any CA chain to this root.
    fn signs_below(self, root: &RootFingerprint) -> bool {
        let members = self.members.iter().map(|authority| &**authority);
        members.chain([self.authority]).any(|authority| authority.chains_to(root))
    }

    fn lacks(self, record: &RootRecord, now: SystemTime) -> Vec<RootLack> {
        self.evidence.witness.lacks(self.bundle, record, now)
    }
}

/// Returns the problem that roots are retained although the files no longer contain them, if any
/// are.
pub(super) fn withdrawn_too_early(roots: &[NeededRoot]) -> Option<IdentityError> {
    let last = roots.iter().max_by_key(|root| root.until)?;
    Some(IdentityError::WithdrawnTooEarly {
        root: last.fingerprint.to_string(),
        subject: last.subject.clone(),
        until: last.until,
        assumed: last.assumed,
    })
}

fn listed(lacks: &[RootLack]) -> String {
    let mut shown: Vec<String> = lacks.iter().take(LISTED).map(ToString::to_string).collect();
    if lacks.len() > LISTED {
        shown.push(format!("and {} more", lacks.len() - LISTED));
    }
    shown.join("; ")
}
