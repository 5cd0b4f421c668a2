//! How a command ends: an exit code that scripts can distinguish, and a message for people.

use std::{fmt, io};

use strait_base::codes::{self, Code};
use strait_identity::StoreTrouble;

/// The exit codes (docs/reference/interface.md, "`strait serve`"); `strait help exit-codes` explains them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The command succeeded, and the result is healthy.
    Fine = 0,
    /// The command failed.
    Failed = 1,
    /// The command succeeded, and the result is unhealthy.
    Unhealthy = 2,
    /// The command line is invalid.
    Usage = 64,
    /// The control plane or an API server does not respond.
    Unreachable = 69,
    /// The control plane or an API server denies access.
    NoRights = 77,
    /// The time of `--timeout` expired.
    TimedOut = 124,
    /// The user pressed Ctrl-C.
    Interrupted = 130,
    /// The reader of the output has closed it: the exit code that a shell shows for a program that
    /// SIGPIPE ended.
    Unread = 141,
}

/// The page of `strait help exit-codes`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes

    0  success, and the result is healthy
    1  failure: a named object exists, but can't be used or changed
    2  success, and the result is \"unhealthy\":
         status, check    there is a problem: an unreachable cluster, a proxy that rejected configuration,
                          a network without a usable gateway, a token that expires soon, a control plane
                          that is not ready; notes do not count
         cluster get      the cluster is unreachable, or not used
         cluster add, import, rotate, drain, pause, resume
                          the change was made, but the control plane can't apply it, with the reason
         explain          a ready endpoint is withheld from the proxy, or there is no endpoint
                          (with --address: that endpoint is withheld)
         diff --at        there are changes
         diff -f          an object is refused, shadowed, or partly ineffective
   64  wrong usage: an invalid flag or value, or a file, directory, context or code that does not exist
   69  the control plane, or an API server, can't be reached
   77  access denied: a token or credential is missing or not accepted
  124  --timeout expired
  130  interrupted by Ctrl-C
  141  ended early, because the reader of the output closed it (-w, demo, piped into head)
";

/// Result of every command.
pub(crate) type CommandResult = Result<Exit, CommandFailure>;

/// Reason why a command failed: what failed, the fact, what still works, the next step.
#[derive(Debug, Clone)]
pub(crate) struct CommandFailure {
    /// Exit code for scripts.
    pub(crate) exit: Exit,
    code: Option<&'static str>,
    /// Whether an API server accepts the credential but denies the request.
    pub(crate) denied: bool,
    message: String,
    next: Option<String>,
}

impl CommandFailure {
    /// Creates a failure without a code.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, code: None, denied: false, message: message.into(), next: None }
    }

    /// Creates a failure with exit code 1.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// Creates a failure with exit code 1 from another error.
    pub(crate) fn of(error: impl fmt::Display) -> Self {
        Self::failed(error.to_string())
    }

    /// Creates a failure for wrong usage: exit code 64.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Creates a failure with a documented code and its next step.
    pub(crate) fn coded(code: &'static Code, message: impl Into<String>) -> Self {
        Self::failed(message).documented(code)
    }

    /// Adds a documented code and its next step.
    #[must_use]
    pub(crate) fn documented(self, code: &'static Code) -> Self {
        self.code(code.id).next(code.next)
    }

    /// Creates a failure about certificates and keys. Missing files and values that no certificate
    /// can contain are wrong usage; an existing file that cannot be used is exit code 1.
    pub(crate) fn identity(what: &str, error: &strait_identity::IdentityError) -> Self {
        use strait_identity::IdentityError as E;
        let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let (exit, cause) = match error {
            E::Read { source, .. } if absent(source) => (Exit::Usage, Some(source)),
            E::Read { source, .. } | E::Write { source, .. } => (Exit::Failed, Some(source)),
            E::PartialAuthority { path, .. } if !path.exists() => (Exit::Usage, None),
            E::NoAuthority | E::Lifetime { .. } | E::Identity(_) => (Exit::Usage, None),
            E::Store { trouble: StoreTrouble::Unreachable, .. } => (Exit::Unreachable, None),
            E::Store { trouble: StoreTrouble::NoRights, .. } => (Exit::NoRights, None),
            _ => (Exit::Failed, None),
        };
        let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
        let failure = Self::new(exit, format!("{what}{error}{cause}")).code(error.code());
        match (error, codes::find(error.code())) {
            (E::Store { .. }, _) => failure.next(
                "check access to the config cluster: kubectl auth can-i create secrets\n\
                 or store the CA on disk: --state-dir DIR, or --ca-dir DIR created by 'strait certs init DIR'",
            ),
            (E::NotEmpty { .. }, _) => failure.next("choose a directory that is absent or empty"),
            // The message itself explains an invalid argument.
            (E::Lifetime { .. } | E::Identity(_), _) | (_, None) => failure,
            (_, Some(code)) => failure.next(code.next),
        }
    }

    /// Returns what failed, and the fact.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether the failure has this code.
    pub(crate) fn is(&self, code: &Code) -> bool {
        self.code == Some(code.id)
    }

    /// Sets the exit code.
    #[must_use]
    pub(crate) fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Marks that an API server denied the request, in contrast to rejecting the credential.
    #[must_use]
    pub(crate) fn denied(mut self) -> Self {
        self.denied = true;
        self
    }

    /// Sets the code that `strait help` explains.
    #[must_use]
    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Sets the next step, if the response was "not found" and no next step is set yet.
    #[must_use]
    pub(crate) fn or_next(self, next: &str) -> Self {
        if self.exit == Exit::Failed && self.next.is_none() { self.next(next) } else { self }
    }

    /// Sets the next step.
    #[must_use]
    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("error")?;
        if let Some(code) = self.code {
            write!(f, " {code}")?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(next) = &self.next {
            write!(f, "\n  next: {}", next.replace('\n', "\n        "))?;
        }
        Ok(())
    }
}
