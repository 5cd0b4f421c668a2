//! Dedicated CAs of members: intermediates below a root of the mesh's CA, each for the workloads of
//! a single member.
//!
//! They make the workloads of a member distinguishable. Removing one certificate cuts the member
//! off. The mesh's CA never signs instead of a dedicated one: a member whose CA was
//! removed or is invalid receives no certificates, and other members are not affected. Pure: the
//! caller reads the files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use tracing::{error, info};

use super::error::{CertificateProblem, IdentityError};
use super::root_rotation::ActiveAuthority;
use super::{Authority, AuthorityPem, RootFingerprint, TrustRoots};
use strait_base::codes;
use strait_model::ClusterId;

/// The dedicated CAs by member.
pub type MemberAuthorities = BTreeMap<ClusterId, MemberAuthority>;

/// The dedicated CA of one member.
#[derive(Debug, Clone)]
pub struct MemberAuthority {
    /// Directory of the files.
    pub directory: PathBuf,
    /// The CA that signs for the member; while it is `None`, no CA does.
    pub authority: Option<Arc<Authority>>,
    /// Why no CA signs, or why newer files are not used.
    pub problem: Option<CertificateProblem>,
    /// Number of certificates issued since the start, with all files so far.
    pub issued: Arc<AtomicU64>,
    /// The files of `authority`.
    active: Option<AuthorityPem>,
    /// The roots that it was verified against.
    roots: Arc<TrustRoots>,
}

/// Contents of the directory of a member's CA.
pub(super) struct MemberFiles {
    /// The files; `None` if the directory contains no part of a CA.
    pub(super) content: Result<Option<AuthorityPem>, IdentityError>,
    /// Roots whose steps an operator has approved.
    pub(super) approved: BTreeSet<RootFingerprint>,
}

impl MemberAuthority {
    /// Returns the state after reading `files`, from the state `before`. `mesh` is the CA of all
    /// other workloads.
    pub(super) fn next(
        member: &ClusterId,
        directory: &Path,
        files: MemberFiles,
        before: Option<&Self>,
        mesh: ActiveAuthority<'_>,
        now: SystemTime,
    ) -> Self {
        let mut next = before.cloned().unwrap_or_else(|| Self {
            directory: directory.to_owned(),
            authority: None,
            problem: None,
            issued: Arc::default(),
            active: None,
            roots: Arc::clone(mesh.authority.roots()),
        });
        let fault = match files.content {
            Ok(None) => {
                (next.authority, next.active) = (None, None);
                Some(IdentityError::MemberAuthorityGone { member: member.to_string() })
            }
            content => next
                .verify_against(member, mesh.authority.roots(), now)
                .and_then(|moved| match content {
                    // New files are considered in a later step, when it is known which parts of the
                    // mesh have the roots that changed in this one.
                    Ok(Some(_)) if moved => Ok(()),
                    Ok(files_now) => {
                        next.take(member, files_now, &files.approved, before, mesh, now)
                    }
                    Err(fault) => Err(fault),
                })
                .err(),
        };
        next.record_problem(member, fault, now);
        next
    }

    /// Verifies the active files against `roots` if these changed or the CA has expired. Returns
    /// whether the roots changed.
    fn verify_against(
        &mut self,
        member: &ClusterId,
        roots: &Arc<TrustRoots>,
        now: SystemTime,
    ) -> Result<bool, IdentityError> {
        let has_ended =
            self.authority.as_ref().is_some_and(|authority| authority.not_after() <= now);
        let moved = *self.roots != **roots;
        if !moved && !has_ended {
            return Ok(false);
        }
        self.roots = Arc::clone(roots);
        self.authority = None;
        let Some(files) = &self.active else { return Ok(moved) };
        self.authority = Some(Arc::new(self.build(member, files, now)?));
        Ok(moved)
    }

    /// Activates new files if they differ from the active ones. Invalid files are checked again
    /// each time.
    fn take(
        &mut self,
        member: &ClusterId,
        files: Option<AuthorityPem>,
        approved: &BTreeSet<RootFingerprint>,
        before: Option<&Self>,
        mesh: ActiveAuthority<'_>,
        now: SystemTime,
    ) -> Result<(), IdentityError> {
        let Some(files) = files else { return Ok(()) };
        if self.active.as_ref() == Some(&files) && self.authority.is_some() {
            return Ok(());
        }
        let new = self.build(member, &files, now)?;
        // A process that starts uses the existing files, as it does for the CA of the mesh.
        if before.is_some() && !new.shares_root_with(mesh.authority) {
            let current = self.authority.as_deref().unwrap_or(mesh.authority);
            ActiveAuthority { authority: current, ..mesh }.may_pass_to(&new, approved, now)?;
        }
        (self.authority, self.active) = (Some(Arc::new(new)), Some(files));
        Ok(())
    }

    fn build(
        &self,
        member: &ClusterId,
        files: &AuthorityPem,
        now: SystemTime,
    ) -> Result<Authority, IdentityError> {
        let origin = self.directory.display().to_string();
        let roots = Arc::clone(&self.roots);
        let made = Authority::below(files, &origin, roots, now).map_err(|fault| match fault {
            IdentityError::Unrooted { reason, .. } => {
                IdentityError::MemberAuthorityUnrooted { reason }
            }
            fault => fault,
        });
        Ok(made?.for_member(member.clone()))
    }

    /// Records and logs a fault or its end.
    fn record_problem(
        &mut self,
        member: &ClusterId,
        fault: Option<IdentityError>,
        now: SystemTime,
    ) {
        let directory = self.directory.display();
        let problem = fault.map(|fault| {
            let code = match &fault {
                IdentityError::SignsTooEarly { .. } => codes::ROOT_SIGNS_EARLY.id,
                IdentityError::MemberAuthorityGone { .. } => codes::MEMBER_CA_GONE.id,
                _ => codes::MEMBER_CA.id,
            };
            let outcome = match &self.authority {
                Some(_) => "its previous CA stays active",
                None => "its workloads receive no certificates",
            };
            let fact = CertificateProblem::full_message(&fault);
            let message = format!("the CA of member {member} ({directory}): {fact}; {outcome}");
            match &self.problem {
                Some(previous) if previous.message == message => previous.clone(),
                _ => CertificateProblem { code, message, since: now },
            }
        });
        if problem == self.problem {
            return;
        }
        match &problem {
            Some(CertificateProblem { code, message, .. }) => {
                error!(code, %member, fact = message, "a member's CA needs attention; other members are not affected");
            }
            None => info!(%member, %directory, "the member's dedicated CA signs for it"),
        }
        self.problem = problem;
    }

    /// Returns whether the CA or its problem changed.
    pub(super) fn differs_from(&self, before: Option<&Self>) -> bool {
        before.is_none_or(|before| {
            let pointer = |one: &Self| one.authority.as_ref().map(Arc::as_ptr);
            pointer(self) != pointer(before) || self.problem != before.problem
        })
    }
}

#[cfg(test)]
mod tests;
