//! `strait certs`: creates a CA in a directory and workload certificates from it, and shows the
//! roots of a running CA.
//!
//! It is meant for development, for a first mesh, and for proxies without an agent. Except for
//! `status`, the commands work on files only, without a control plane.

pub(super) mod status;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};

use super::list::QueryArgs;
use strait_base::duration::HumanDuration;
use strait_identity::{Authority, AuthorityPem, SpiffeId, authority};

/// Create certificates without a control plane, and show the root certificates of a running one.
#[derive(Debug, Args)]
pub struct CertsArgs {
    #[command(subcommand)]
    command: CertsCommand,
}

#[derive(Debug, Subcommand)]
enum CertsCommand {
    /// Create a CA directory for `strait serve --ca-dir`.
    Init(InitArgs),
    /// Create a certificate and key for a workload.
    Issue(IssueArgs),
    /// Show the root certificates of the control plane's CA, and the next step of a rotation.
    Status(QueryArgs),
}

#[derive(Debug, Args)]
struct InitArgs {
    /// Directory to create; it must be absent or empty.
    directory: PathBuf,
    /// Create an intermediate CA signed by the CA in this directory, for example for a single
    /// member (`strait serve --ca-member-dir`).
    #[arg(long, value_name = "DIR")]
    under: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct IssueArgs {
    /// Directory of the CA, as created by `strait certs init`.
    #[arg(long, value_name = "DIR")]
    ca_dir: PathBuf,
    /// Namespace of the workload.
    #[arg(long, value_name = "NS")]
    namespace: String,
    /// Service account of the workload.
    #[arg(long, value_name = "SA")]
    service_account: String,
    /// Trust domain of the mesh.
    #[arg(long, value_name = "TD", default_value = "cluster.local")]
    trust_domain: String,
    /// Lifetime of the certificate, at most 90d.
    #[arg(long, value_name = "D", default_value = "24h")]
    ttl: HumanDuration,
    /// Directory for cert-chain.pem, key.pem and root-cert.pem; existing files are replaced.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Reason why a command of `strait certs` failed.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// An error of the identity crate.
    #[error(transparent)]
    Identity(#[from] strait_identity::IdentityError),
    /// A requested value cannot be part of a certificate.
    #[error("{0}")]
    Usage(String),
    /// The workload's files would replace the files of a CA.
    #[error("{} contains a CA; choose another directory for the workload's files", .0.display())]
    OutIsAuthority(PathBuf),
    /// The report cannot be printed.
    #[error("can't print")]
    Print(#[from] io::Error),
}

impl CertsError {
    /// Returns the code that `strait help` explains.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Identity(error) => error.code(),
            Self::Usage(_) => "STR0706",
            Self::OutIsAuthority(_) | Self::Print(_) => "STR0701",
        }
    }
}

/// Runs the command, and reports the written files and the next step on `out`.
pub fn run(args: &CertsArgs, out: &mut dyn Write) -> Result<(), CertsError> {
    match &args.command {
        CertsCommand::Init(args) => init(args, out),
        CertsCommand::Issue(args) => issue(args, out),
        // `status` queries a control plane, and the caller runs it.
        CertsCommand::Status(_) => Ok(()),
    }
}

impl CertsArgs {
    /// Returns the query for a control plane, if the command is `status`.
    pub(crate) fn status(&self) -> Option<&QueryArgs> {
        match &self.command {
            CertsCommand::Status(common) => Some(common),
            CertsCommand::Init(_) | CertsCommand::Issue(_) => None,
        }
    }
}

fn init(InitArgs { directory, under }: &InitArgs, out: &mut dyn Write) -> Result<(), CertsError> {
    let now = SystemTime::now();
    if let Some(parent) = under {
        return init_below(parent, directory, out);
    }
    let files = AuthorityPem::generate(now)?;
    let not_after = Authority::new(&files, "the new CA", now)?.not_after();
    files.write(directory)?;
    let shown = directory.display();
    writeln!(out, "created a CA in {shown}, valid until {}:", date(not_after))?;
    writeln!(out, "  {}", AuthorityPem::FILES.join(" "))?;
    writeln!(out, "a person with ca-key.pem can impersonate any workload: keep it secret")?;
    writeln!(out, "next: strait serve --ca-dir {shown}")?;
    writeln!(
        out,
        "      strait certs issue --ca-dir {shown} --namespace NS --service-account SA --out DIR"
    )?;
    Ok(())
}

fn init_below(parent: &Path, directory: &Path, out: &mut dyn Write) -> Result<(), CertsError> {
    let now = SystemTime::now();
    let above = Authority::new(&AuthorityPem::read(parent)?, &parent.display().to_string(), now)?;
    let whose = directory.file_name().unwrap_or_default().to_string_lossy();
    let files = above.issue_authority(&whose, now)?;
    let not_after = Authority::new(&files, "the new CA", now)?.not_after();
    files.write(directory)?;
    let (shown, parent) = (directory.display(), parent.display());
    writeln!(
        out,
        "created an intermediate CA in {shown}, signed by the CA in {parent}, valid until {}:",
        date(not_after)
    )?;
    writeln!(out, "  {}", AuthorityPem::FILES.join(" "))?;
    writeln!(out, "a person with ca-key.pem can impersonate any workload: keep it secret")?;
    writeln!(out, "next: strait serve --ca-dir {parent} --ca-member-dir MEMBER={shown}")?;
    Ok(())
}

fn issue(args: &IssueArgs, out: &mut dyn Write) -> Result<(), CertsError> {
    if args.out.join("ca-key.pem").exists() {
        return Err(CertsError::OutIsAuthority(args.out.clone()));
    }
    let now = SystemTime::now();
    let id = SpiffeId::new(&args.trust_domain, &args.namespace, &args.service_account).map_err(
        |error| {
            CertsError::Usage(format!(
                "--trust-domain {:?}, --namespace {:?} and --service-account {:?} are not a valid identity: {error}",
                args.trust_domain, args.namespace, args.service_account
            ))
        },
    )?;
    if args.ttl.0 > authority::LIFETIME_MAX || args.ttl.0 < Duration::from_secs(1) {
        let most = HumanDuration(authority::LIFETIME_MAX);
        return Err(CertsError::Usage(format!("--ttl {} is not between 1s and {most}", args.ttl)));
    }
    let files = AuthorityPem::read(&args.ca_dir)?;
    let authority = Authority::new(&files, &args.ca_dir.display().to_string(), now)?;
    let issued = authority.issue_workload(&id, args.ttl.0, now)?;
    authority::write_workload(&args.out, &issued, authority.roots())?;
    let shown = args.out.display();
    let not_after = issued.chain.not_after();
    writeln!(out, "created a certificate for {id}, valid until {}:", date(not_after))?;
    writeln!(out, "  {shown}/cert-chain.pem {shown}/key.pem {shown}/root-cert.pem")?;
    writeln!(
        out,
        "next: strait proxy bootstrap --type TYPE --name N --namespace {} --service-account {} \
         --cluster ID --ip IP --discovery HOST:PORT --cert {shown}/cert-chain.pem \
         --key {shown}/key.pem --root-ca {shown}/root-cert.pem",
        args.namespace, args.service_account
    )?;
    Ok(())
}

fn date(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|_| "a time out of range".to_owned(), |time| format!("{time:.0}"))
}

#[cfg(test)]
mod tests;
