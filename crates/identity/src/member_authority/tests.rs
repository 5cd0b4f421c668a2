use std::time::Duration;

use super::*;
use crate::testing::Ca;
use crate::{RootEvidence, RootLack, RootLedger, RootRecord, RootWitness};
use strait_model::RootBundle;

/// The CA of a mesh whose workloads receive `roots`, and the evidence about these.
struct Mesh {
    authority: Authority,
    evidence: RootEvidence,
    now: SystemTime,
}

/// Reports that a part of the mesh lacks each root.
#[derive(Debug)]
struct SomebodyLacks;

impl RootWitness for SomebodyLacks {
    fn lacks(&self, _: &RootBundle, _: &RootRecord, _: SystemTime) -> Vec<RootLack> {
        let (who, fact) = ("cluster west".to_owned(), "it lacks it".to_owned());
        vec![RootLack { who, fact, is_seen: true }]
    }
}

impl Mesh {
    fn of(ca: &Ca, others: &[&Ca]) -> Self {
        let now = SystemTime::now();
        let roots = others.iter().map(|other| &*other.files.root_cert);
        let root_cert = std::iter::once(&*ca.files.root_cert).chain(roots).collect();
        let files = AuthorityPem { root_cert, ..ca.files.clone() };
        let authority = Authority::new(&files, "mesh", now).expect("sound");
        let evidence = RootEvidence::none();
        evidence.ledger.given(authority.roots(), None, now);
        Self { authority, evidence, now }
    }

    fn lacked(mut self) -> Self {
        self.evidence.witness = Arc::new(SomebodyLacks);
        self
    }

    fn next(&self, held: Held, before: Option<&MemberAuthority>) -> MemberAuthority {
        self.next_approved(held, before, BTreeSet::new())
    }

    fn next_approved(
        &self,
        held: Held,
        before: Option<&MemberAuthority>,
        approved: BTreeSet<RootFingerprint>,
    ) -> MemberAuthority {
        let bundle = RootBundle { pem: "".into(), certificates: BTreeSet::new() };
        let mesh = AuthorityInForce {
            authority: &self.authority,
            bundle: &bundle,
            evidence: &self.evidence,
            kept: &[],
            members: &[],
        };
        let (member, files) = ("east".into(), MemberFiles { held, approved });
        MemberAuthority::next(&member, Path::new("/cas/east"), files, before, mesh, self.now)
    }
}

type Held = Result<Option<AuthorityPem>, IdentityError>;

fn below(ca: &Ca) -> AuthorityPem {
    ca.authority.issue_authority("east", SystemTime::now()).expect("it signs")
}

fn partial() -> Held {
    Err(IdentityError::PartialAuthority { path: "/cas/east".into(), missing: vec!["ca-key.pem"] })
}

/// Returns whether a CA signs, and the code of the problem.
fn state(own: &MemberAuthority) -> (bool, Option<&'static str>) {
    (own.authority.is_some(), own.problem.as_ref().map(|problem| problem.code))
}

/// Returns whether the CA is unchanged.
fn is_same(a: &MemberAuthority, b: &MemberAuthority) -> bool {
    let held = |own: &MemberAuthority| own.authority.as_ref().map(Arc::as_ptr);
    held(a) == held(b) && a.authority.is_some()
}

#[test]
fn invalid_files_keep_the_active_ca_and_an_empty_directory_cuts_off() {
    let (ca, other) = (Ca::new(), Ca::new());
    let mesh = Mesh::of(&ca, &[]);
    let good = mesh.next(Ok(Some(below(&ca))), None);
    assert_eq!(state(&good), (true, None));
    for bad in [partial(), Ok(Some(below(&other))), Ok(Some(other.files.clone()))] {
        let kept = mesh.next(bad, Some(&good));
        assert_eq!(state(&kept), (true, Some("STR0555")));
        assert!(is_same(&kept, &good));
    }
    let told = mesh.next(Ok(Some(below(&other))), Some(&good)).problem.expect("a problem").message;
    for part in ["member east (/cas/east)", "chain to no root of the mesh's CA", "have such a root"]
    {
        assert!(told.contains(part), "{part} in {told}");
    }
    let cut = mesh.next(Ok(None), Some(&good));
    assert_eq!(state(&cut), (false, Some("STR0556")));
    // A partial CA, for example during a write, does not restore a removed CA.
    let half = mesh.next(partial(), Some(&cut));
    assert_eq!(state(&half), (false, Some("STR0555")));
    assert_eq!(state(&mesh.next(Ok(Some(below(&ca))), Some(&half))), (true, None));
    // At the start there is no previous CA.
    assert_eq!(state(&mesh.next(partial(), None)), (false, Some("STR0555")));
    assert_eq!(state(&mesh.next(Ok(None), None)), (false, Some("STR0556")));
}

#[test]
fn unchanged_state_is_reported_once() {
    let ca = Ca::new();
    let mesh = Mesh::of(&ca, &[]);
    let files = below(&ca);
    let good = mesh.next(Ok(Some(files.clone())), None);
    assert!(good.differs_from(None));
    assert!(!mesh.next(Ok(Some(files)), Some(&good)).differs_from(Some(&good)));
    let cut = mesh.next(Ok(None), Some(&good));
    assert!(cut.differs_from(Some(&good)));
    assert!(!mesh.next(Ok(None), Some(&cut)).differs_from(Some(&cut)));
    let renewed = mesh.next(Ok(Some(below(&ca))), Some(&good));
    assert!(renewed.differs_from(Some(&good)), "another intermediate below the same root");
}

#[test]
fn expired_intermediate_does_not_sign() {
    let ca = Ca::new();
    let mut mesh = Mesh::of(&ca, &[]);
    let files = below(&ca);
    let good = mesh.next(Ok(Some(files.clone())), None);
    mesh.now += super::super::authority::INTERMEDIATE_LIFETIME + Duration::from_secs(1);
    let ended = mesh.next(Ok(Some(files.clone())), Some(&good));
    assert_eq!(state(&ended), (false, Some("STR0555")));
    assert!(!mesh.next(Ok(Some(files)), Some(&ended)).differs_from(Some(&ended)));
}

#[test]
fn other_root_signs_for_a_member_once_no_part_is_seen_to_lack_it() {
    let (old, new) = (Ca::new(), Ca::new());
    let (alone, both) = (Mesh::of(&old, &[]), Mesh::of(&old, &[&new]));
    let held = alone.next(Ok(Some(below(&old))), None);
    // If the root is new in the same step, it is distributed first.
    let files = below(&new);
    let same_step = both.next(Ok(Some(files.clone())), Some(&held));
    let led_by = |own: &MemberAuthority, ca: &Ca| {
        let authority = own.authority.as_ref().expect("it signs");
        authority.leads_to(&ca.authority.leading()[0])
    };
    assert!(led_by(&same_step, &old));
    let both = both.lacked();
    let waits = both.next(Ok(Some(files.clone())), Some(&same_step));
    assert_eq!(state(&waits), (true, Some("STR0550")));
    assert!(led_by(&waits, &old) && is_same(&waits, &same_step));
    let told = &waits.problem.as_ref().expect("a problem").message;
    assert!(told.contains("cluster west: it lacks it"), "{told}");
    // An operator approves, or all parts have the root.
    let approved = [new.authority.leading()[0].clone()].into();
    let signs = both.next_approved(Ok(Some(files.clone())), Some(&waits), approved);
    assert!(led_by(&signs, &new) && signs.problem.is_none());
    let all_have_it = Mesh::of(&old, &[&new]);
    assert!(led_by(&all_have_it.next(Ok(Some(files.clone())), Some(&waits)), &new));
    // A CA below the mesh's signing root does not wait, and neither does a process that starts.
    assert!(both.next(Ok(Some(below(&old))), Some(&waits)).problem.is_none());
    assert!(led_by(&both.next(Ok(Some(files)), None), &new));
}

#[test]
fn ca_of_a_member_ends_with_its_last_root() {
    let (old, new) = (Ca::new(), Ca::new());
    let files = below(&old);
    let held = Mesh::of(&old, &[&new]).next(Ok(Some(files.clone())), None);
    // The mesh's CA changes to the other root while both are distributed: the member's CA
    // continues.
    let passed = Mesh::of(&new, &[&old]).next(Ok(Some(files.clone())), Some(&held));
    assert_eq!(state(&passed), (true, None));
    let gone = Mesh::of(&new, &[]);
    let refused = gone.next(Ok(Some(files.clone())), Some(&passed));
    assert_eq!(state(&refused), (false, Some("STR0555")));
    assert_eq!(state(&gone.next(Ok(Some(files)), Some(&refused))), (false, Some("STR0555")));
}

#[test]
fn root_of_a_members_ca_counts_as_signing() {
    let (old, new) = (Ca::new(), Ca::new());
    let mesh = Mesh::of(&new, &[&old]);
    let own = mesh.next(Ok(Some(below(&old))), None);
    let ledger = RootLedger::empty();
    ledger.given(mesh.authority.roots(), None, mesh.now);
    ledger.issued(old.authority.leading(), mesh.now + Duration::from_secs(3600));
    let evidence = RootEvidence { ledger: Arc::new(ledger), ..mesh.evidence.clone() };
    let steps = |members: &[Arc<Authority>]| {
        let bundle = RootBundle { pem: "".into(), certificates: BTreeSet::new() };
        let (authority, evidence) = (&mesh.authority, &evidence);
        let in_force =
            AuthorityInForce { authority, bundle: &bundle, evidence, kept: &[], members };
        let standings = in_force.standings(mesh.now);
        standings.iter().map(|root| root.step.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(steps(&[]), ["signs", "wait"]);
    assert_eq!(steps(&[own.authority.expect("it signs")]), ["signs", "signs"]);
}
