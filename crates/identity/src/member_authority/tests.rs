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
struct LackingWitness;

impl RootWitness for LackingWitness {
    fn lacks(&self, _: &RootBundle, _: &RootRecord, _: SystemTime) -> Vec<RootLack> {
        let (part, fact) = ("cluster west".to_owned(), "it lacks it".to_owned());
        vec![RootLack { part, fact, is_seen: true }]
    }
}

impl Mesh {
    fn new(ca: &Ca, others: &[&Ca]) -> Self {
        let now = SystemTime::now();
        let roots = others.iter().map(|other| &*other.files.root_cert);
        let root_cert = std::iter::once(&*ca.files.root_cert).chain(roots).collect();
        let files = AuthorityPem { root_cert, ..ca.files.clone() };
        let authority = Authority::new(&files, "mesh", now).expect("sound");
        let evidence = RootEvidence::empty();
        evidence.ledger.given(authority.roots(), None, now);
        Self { authority, evidence, now }
    }

    fn lacked(mut self) -> Self {
        self.evidence.witness = Arc::new(LackingWitness);
        self
    }

    fn next(&self, content: FilesContent, before: Option<&MemberAuthority>) -> MemberAuthority {
        self.next_approved(content, before, BTreeSet::new())
    }

    fn next_approved(
        &self,
        content: FilesContent,
        before: Option<&MemberAuthority>,
        approved: BTreeSet<RootFingerprint>,
    ) -> MemberAuthority {
        let bundle = RootBundle { pem: "".into(), certificates: BTreeSet::new() };
        let mesh = ActiveAuthority {
            authority: &self.authority,
            bundle: &bundle,
            evidence: &self.evidence,
            retained: &[],
            members: &[],
        };
        let (member, files) = ("east".into(), MemberFiles { content, approved });
        MemberAuthority::next(&member, Path::new("/cas/east"), files, before, mesh, self.now)
    }
}

type FilesContent = Result<Option<AuthorityPem>, IdentityError>;

fn below(ca: &Ca) -> AuthorityPem {
    ca.authority.issue_authority("east", SystemTime::now()).expect("it signs")
}

fn partial() -> FilesContent {
    Err(IdentityError::PartialAuthority { path: "/cas/east".into(), missing: vec!["ca-key.pem"] })
}

/// Returns whether a CA signs, and the code of the problem.
fn state(own: &MemberAuthority) -> (bool, Option<&'static str>) {
    (own.authority.is_some(), own.problem.as_ref().map(|problem| problem.code))
}

/// Returns whether the CA is unchanged.
fn is_same(a: &MemberAuthority, b: &MemberAuthority) -> bool {
    let pointer = |own: &MemberAuthority| own.authority.as_ref().map(Arc::as_ptr);
    pointer(a) == pointer(b) && a.authority.is_some()
}

#[test]
fn invalid_files_keep_the_active_ca_and_an_empty_directory_cuts_off() {
    let (ca, other) = (Ca::new(), Ca::new());
    let mesh = Mesh::new(&ca, &[]);
    let good = mesh.next(Ok(Some(below(&ca))), None);
    assert_eq!(state(&good), (true, None));
    for bad in [partial(), Ok(Some(below(&other))), Ok(Some(other.files.clone()))] {
        let unchanged = mesh.next(bad, Some(&good));
        assert_eq!(state(&unchanged), (true, Some("STR0555")));
        assert!(is_same(&unchanged, &good));
    }
    let message =
        mesh.next(Ok(Some(below(&other))), Some(&good)).problem.expect("a problem").message;
    for part in ["member east (/cas/east)", "chain to no root of the mesh's CA", "have such a root"]
    {
        assert!(message.contains(part), "{part} in {message}");
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
    let mesh = Mesh::new(&ca, &[]);
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
    let mut mesh = Mesh::new(&ca, &[]);
    let files = below(&ca);
    let good = mesh.next(Ok(Some(files.clone())), None);
    mesh.now += super::super::authority::INTERMEDIATE_LIFETIME + Duration::from_secs(1);
    let ended = mesh.next(Ok(Some(files.clone())), Some(&good));
    assert_eq!(state(&ended), (false, Some("STR0555")));
    assert!(!mesh.next(Ok(Some(files)), Some(&ended)).differs_from(Some(&ended)));
}

#[test]
fn other_root_signs_for_a_member_once_no_part_lacks_it() {
    let (old, new) = (Ca::new(), Ca::new());
    let (alone, both) = (Mesh::new(&old, &[]), Mesh::new(&old, &[&new]));
    let active = alone.next(Ok(Some(below(&old))), None);
    // If the root is new in the same step, it is distributed first.
    let files = below(&new);
    let same_step = both.next(Ok(Some(files.clone())), Some(&active));
    let chains_to = |own: &MemberAuthority, ca: &Ca| {
        let authority = own.authority.as_ref().expect("it signs");
        authority.chains_to(&ca.authority.leading()[0])
    };
    assert!(chains_to(&same_step, &old));
    let both = both.lacked();
    let waiting = both.next(Ok(Some(files.clone())), Some(&same_step));
    assert_eq!(state(&waiting), (true, Some("STR0550")));
    assert!(chains_to(&waiting, &old) && is_same(&waiting, &same_step));
    let message = &waiting.problem.as_ref().expect("a problem").message;
    assert!(message.contains("cluster west: it lacks it"), "{message}");
    // An operator approves, or all parts have the root.
    let approved = [new.authority.leading()[0].clone()].into();
    let signs = both.next_approved(Ok(Some(files.clone())), Some(&waiting), approved);
    assert!(chains_to(&signs, &new) && signs.problem.is_none());
    let all_have_it = Mesh::new(&old, &[&new]);
    assert!(chains_to(&all_have_it.next(Ok(Some(files.clone())), Some(&waiting)), &new));
    // A CA below the mesh's signing root does not wait, and neither does a process that starts.
    assert!(both.next(Ok(Some(below(&old))), Some(&waiting)).problem.is_none());
    assert!(chains_to(&both.next(Ok(Some(files)), None), &new));
}

#[test]
fn ca_of_a_member_ends_with_its_last_root() {
    let (old, new) = (Ca::new(), Ca::new());
    let files = below(&old);
    let active = Mesh::new(&old, &[&new]).next(Ok(Some(files.clone())), None);
    // The mesh's CA changes to the other root while both are distributed: the member's CA
    // continues.
    let passed = Mesh::new(&new, &[&old]).next(Ok(Some(files.clone())), Some(&active));
    assert_eq!(state(&passed), (true, None));
    let gone = Mesh::new(&new, &[]);
    let refused = gone.next(Ok(Some(files.clone())), Some(&passed));
    assert_eq!(state(&refused), (false, Some("STR0555")));
    assert_eq!(state(&gone.next(Ok(Some(files)), Some(&refused))), (false, Some("STR0555")));
}

#[test]
fn root_of_a_members_ca_counts_as_signing() {
    let (old, new) = (Ca::new(), Ca::new());
    let mesh = Mesh::new(&new, &[&old]);
    let own = mesh.next(Ok(Some(below(&old))), None);
    let ledger = RootLedger::empty();
    ledger.given(mesh.authority.roots(), None, mesh.now);
    ledger.issued(old.authority.leading(), mesh.now + Duration::from_secs(3600));
    let evidence = RootEvidence { ledger: Arc::new(ledger), ..mesh.evidence.clone() };
    let steps = |members: &[Arc<Authority>]| {
        let bundle = RootBundle { pem: "".into(), certificates: BTreeSet::new() };
        let (authority, evidence) = (&mesh.authority, &evidence);
        let active =
            ActiveAuthority { authority, bundle: &bundle, evidence, retained: &[], members };
        let standings = active.standings(mesh.now);
        standings.iter().map(|root| root.step.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(steps(&[]), ["signs", "wait"]);
    assert_eq!(steps(&[own.authority.expect("it signs")]), ["signs", "signs"]);
}
