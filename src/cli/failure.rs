//! How a command ends: an exit code that scripts can distinguish, and one paragraph for people.

use std::{fmt, io};

use strait_base::codes::{self, Code};
use strait_identity::StoreTrouble;

/// The exit codes (docs/reference/interface.md, "`strait serve`"); `strait help exit-codes` explains them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It was done, and what was asked for is healthy.
    Fine = 0,
    /// It could not be done.
    Failed = 1,
    /// It was done; the answer is "not healthy".
    Unhealthy = 2,
    /// The command line makes no sense.
    Usage = 64,
    /// The control plane or an API server does not answer.
    Unreachable = 69,
    /// It answers, and refuses us.
    NoRights = 77,
    /// `--timeout` ran out.
    TimedOut = 124,
    /// Ctrl-C.
    Interrupted = 130,
    /// Nobody reads what it prints any more: what a shell sees of a program that SIGPIPE has ended.
    Unread = 141,
}

/// The page of `strait help exit-codes`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes

    0  done, and what was asked for is healthy
    1  failed: what is named is there, and can't be used or changed
    2  done, and the answer is \"not healthy\":
         status, check    something is a problem: a cluster out of touch, a proxy that rejected what it was
                          sent, a network that can't be entered, a token that ends soon, a control plane
                          that is not ready; notes alone are none
         cluster get      the cluster is out of touch, or not used
         cluster add, import, rotate, drain, pause, resume
                          it was done, and the control plane can't follow, with the reason
         explain          an endpoint that is ready is withheld from the proxy, or there is none
                          (with --address: that endpoint is withheld)
         diff --at        something is otherwise now
         diff -f          an object is refused, shadowed, or has no effect in part
   64  wrong usage: no such flag or value, or it names a file, directory, context or code that isn't there
   69  the control plane, or an API server, can't be reached
   77  no rights there: token or credential not accepted, or there is none
  124  --timeout ran out
  130  interrupted by Ctrl-C
  141  ended before its time, since nobody reads what it prints any more (-w, demo, piped into head)
";

/// What every command returns.
pub(crate) type CommandResult = Result<Exit, CommandFailure>;

/// Why a command failed: what failed, the fact, what still works, the next step.
#[derive(Debug, Clone)]
pub(crate) struct CommandFailure {
    /// For scripts.
    pub(crate) exit: Exit,
    code: Option<&'static str>,
    /// Whether an API server knows the credential and does not let it do that.
    pub(crate) denied: bool,
    message: String,
    next: Option<String>,
}

impl CommandFailure {
    /// A failure without a code.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, code: None, denied: false, message: message.into(), next: None }
    }

    /// Plain failure: exit code 1.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// An error of no kind of its own, as plain failure.
    pub(crate) fn of(error: impl fmt::Display) -> Self {
        Self::failed(error.to_string())
    }

    /// Wrong usage: exit code 64.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// One of the documented kinds of trouble, with its next step.
    pub(crate) fn coded(code: &'static Code, message: impl Into<String>) -> Self {
        Self::failed(message).documented(code)
    }

    /// The same as one of the documented kinds of trouble, with its next step.
    #[must_use]
    pub(crate) fn documented(self, code: &'static Code) -> Self {
        self.code(code.id).next(code.next)
    }

    /// Trouble with certificates and keys. Wrong usage is what names a file that isn't there, or what no
    /// certificate can say; a file that is there and can't be used is a plain failure.
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
                "check the config cluster: kubectl auth can-i create secrets\n\
                 or keep the CA on disk: --state-dir DIR, or --ca-dir DIR made by 'strait certs init DIR'",
            ),
            (E::NotEmpty { .. }, _) => failure.next("name a folder that is absent or empty"),
            // A mere wrong argument on the command line is explained by the message.
            (E::Lifetime { .. } | E::Identity(_), _) | (_, None) => failure,
            (_, Some(code)) => failure.next(code.next),
        }
    }

    /// What failed, and the fact.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Whether it is this kind of trouble.
    pub(crate) fn is(&self, code: &Code) -> bool {
        self.code == Some(code.id)
    }

    /// The same with another exit code.
    #[must_use]
    pub(crate) fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// The same, where an API server says "you may not" rather than "who are you".
    #[must_use]
    pub(crate) fn denied(mut self) -> Self {
        self.denied = true;
        self
    }

    /// The code under which `strait help` explains it.
    #[must_use]
    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// What to do now, where an answer says "there is none" and no other advice is given yet.
    #[must_use]
    pub(crate) fn or_next(self, next: &str) -> Self {
        if self.exit == Exit::Failed && self.next.is_none() { self.next(next) } else { self }
    }

    /// What to do now.
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
