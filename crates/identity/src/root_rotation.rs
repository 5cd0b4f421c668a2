//! How far the replacement of a root has come, and which step may not be taken yet. Pure.
//!
//! Nobody says in which phase a rotation is: it follows from the roots that the CA has, which of them what it signs leads
//! to, when the last certificate of each ends, and who is known to have been given each. (docs/guide/certificates.md)

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::root_records::{NeededRoot, RootFingerprint, RootLedger, RootRecord};
use super::{Authority, IdentityError, RootLife};
use strait_model::RootBundle;

/// The file in a CA's folder, or the key in its Secret, by which an operator approves of steps whatever is missing.
pub const APPROVED: &str = "rotation-approved";
/// How many of those who lack a root are listed in a message.
const LISTED: usize = 4;

/// Who is not known to have a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootLack {
    /// Such as `cluster east`.
    pub who: String,
    /// Why, and what ends it.
    pub fact: String,
    /// Whether it was seen that they lack it; else nobody can tell but the operator.
    pub is_seen: bool,
}

impl fmt::Display for RootLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.who, self.fact)
    }
}

/// Who sees whether workloads have a root.
pub trait RootWitness: fmt::Debug + Send + Sync {
    /// Who is not known at `now` to have the root of `record`, which is one of `bundle`.
    fn lacks(&self, bundle: &RootBundle, record: &RootRecord, now: SystemTime) -> Vec<RootLack>;
}

/// What is known of roots beside the files of the CA.
#[derive(Debug, Clone)]
pub struct RootEvidence {
    /// What was issued.
    pub ledger: Arc<RootLedger>,
    /// Who has them.
    pub witness: Arc<dyn RootWitness>,
}

impl RootEvidence {
    /// Of a CA that has signed nothing, for nobody.
    pub fn none() -> Self {
        #[derive(Debug)]
        struct Nobody;
        impl RootWitness for Nobody {
            fn lacks(&self, _: &RootBundle, _: &RootRecord, _: SystemTime) -> Vec<RootLack> {
                Vec::new()
            }
        }
        Self { ledger: Arc::new(RootLedger::empty()), witness: Arc::new(Nobody) }
    }
}

/// What becomes of a root of the CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootStep {
    /// What is signed now leads to it.
    Signs,
    /// It is given to workloads, and some are not known to have it.
    Distribute,
    /// All have it: it may sign.
    Sign,
    /// It signs no more, and certificates lead to it.
    Wait,
    /// The same, and it is in the files no more.
    Kept,
    /// Nothing leads to it any more: it may go.
    Withdraw,
}

impl RootStep {
    /// The name in `/debug/certificates`.
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

    /// The phase of a rotation that such a root means, and its number; none where it means none.
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

/// A root of the CA, and how it fares.
#[derive(Debug, Clone)]
pub struct RootStanding {
    /// Which it is.
    pub fingerprint: RootFingerprint,
    /// Whose it is, and when it ends.
    pub life: RootLife,
    /// What becomes of it.
    pub step: RootStep,
    /// What is remembered of it.
    pub record: Option<RootRecord>,
    /// Who is not known to have it.
    pub lacks: Vec<RootLack>,
}

/// A CA in force, and what is known of its roots.
#[derive(Clone, Copy)]
pub(super) struct AuthorityInForce<'a> {
    pub(super) authority: &'a Authority,
    /// What workloads are given to believe.
    pub(super) bundle: &'a RootBundle,
    pub(super) evidence: &'a RootEvidence,
    /// Roots that are in the files no more.
    pub(super) kept: &'a [NeededRoot],
    /// What signs for single members.
    pub(super) members: &'a [Arc<Authority>],
}

impl AuthorityInForce<'_> {
    /// How the roots fare at `now`, that which signs first.
    pub(super) fn standings(self, now: SystemTime) -> Vec<RootStanding> {
        let records = self.evidence.ledger.records();
        let standing = |der: &Vec<u8>| {
            let (life, fingerprint) = (RootLife::of(der)?, RootFingerprint::of(der));
            let record = records.get(&fingerprint).cloned();
            let last_ends = record.as_ref().and_then(RootRecord::last_ends);
            let (step, lacks) = match last_ends {
                _ if self.signs_below(&fingerprint) => (RootStep::Signs, Vec::new()),
                _ if self.kept.iter().any(|kept| kept.fingerprint == fingerprint) => {
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

    /// Whether `next` may sign in the place of what signs now. Who changes all roots at once has no choice, and of those that
    /// nobody sees the operator has judged.
    ///
    /// # Errors
    /// Somebody is seen to lack each root that what it signs leads to, and nobody has approved of it.
    pub(super) fn may_pass_to(
        self,
        next: &Authority,
        approved: &BTreeSet<RootFingerprint>,
        now: SystemTime,
    ) -> Result<(), IdentityError> {
        let is_approved = next.leading().iter().any(|root| approved.contains(root));
        if is_approved || next.is_believed_like(self.authority) {
            return Ok(());
        }
        let records = self.evidence.ledger.records();
        let given = self.authority.roots().certificates();
        let given: BTreeSet<_> = given.map(|der| RootFingerprint::of(der)).collect();
        if !next.roots().certificates().any(|der| given.contains(&RootFingerprint::of(der))) {
            return Ok(());
        }
        let mut refusal = None;
        for root in next.leading() {
            let mut lacks = match records.get(root).filter(|_| given.contains(root)) {
                Some(record) => self.lacks(record, now),
                None => vec![RootLack {
                    who: "everybody".to_owned(),
                    fact: "it was not among the roots before; put it beside them and nothing else, first".to_owned(),
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

    /// Whether what any CA signs leads to this root.
    fn signs_below(self, root: &RootFingerprint) -> bool {
        let members = self.members.iter().map(|authority| &**authority);
        members.chain([self.authority]).any(|authority| authority.leads_to(root))
    }

    fn lacks(self, record: &RootRecord, now: SystemTime) -> Vec<RootLack> {
        self.evidence.witness.lacks(self.bundle, record, now)
    }
}

/// Why roots that the files have no more are kept.
pub(super) fn kept(roots: &[NeededRoot]) -> Option<IdentityError> {
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
