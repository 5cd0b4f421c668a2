//! The folder that Envoy reads: certificate, key and roots, the two SDS files that refer to them, and the bootstrap.
//!
//! Files that belong together are replaced together. They are in a subfolder, to which the link `..data` points, and
//! renaming that link triggers Envoy's watch on the folder. If writing fails, the new files are removed and the
//! previous ones stay.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use strait_bootstrap::PemFiles;

use crate::credentials::{Credentials, RootSet};
use crate::problem::Problem;

/// The link that is replaced.
const DATA: &str = "..data";
/// The name prefix of the folders to which the link points.
const GENERATION: &str = "..generation-";
const CHAIN: &str = "cert-chain.pem";
const KEY: &str = "key.pem";
const ROOTS: &str = "root-cert.pem";

/// The maximum size of a file to read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The folder with an Envoy's secrets.
#[derive(Debug, Clone)]
pub(crate) struct SecretFolder {
    path: PathBuf,
}

impl SecretFolder {
    /// Creates the folder if needed, and writes the files that never change.
    ///
    /// # Errors
    /// Envoy does not accept the path, the volume is not in memory although it must be, or the folder is not writable.
    pub(crate) fn open(path: &Path, may_be_on_disk: bool) -> Result<Self, Problem> {
        let usable = path.is_absolute() && path.to_str().is_some_and(|text| text.len() <= 200);
        if !usable || path.to_string_lossy().chars().any(char::is_control) {
            let fact =
                format!("--dir {} is not an absolute path of at most 200 bytes", path.display());
            return Err(Problem::new("STR0950", fact, "set another folder: --dir DIR"));
        }
        let folder = Self { path: path.to_owned() };
        let made = fs::create_dir_all(path)
            .and_then(|()| rustix::fs::statfs(path).map_err(io::Error::from));
        let kind = made.map_err(|error| folder.unwritable(&error))?.f_type;
        if !may_be_on_disk && !is_in_memory(i128::from(kind)) {
            let fact = format!(
                "{} is on a volume that is not in memory, where a key would outlive the pod",
                path.display()
            );
            let next =
                "mount an emptyDir with `medium: Memory` there, or start with --allow-key-on-disk";
            return Err(Problem::new("STR0951", fact, next));
        }
        folder.write_sds_files().map_err(|error| folder.unwritable(&error))?;
        Ok(folder)
    }

    /// Returns the path of the file with the secret `default`.
    pub(crate) fn sds_certificate(&self) -> PathBuf {
        self.path.join("sds-cert.yaml")
    }

    /// Returns the path of the file with the secret `ROOTCA`.
    pub(crate) fn sds_roots(&self) -> PathBuf {
        self.path.join("sds-roots.yaml")
    }

    /// Returns the credentials of an earlier run, if they are valid together.
    pub(crate) fn kept(&self) -> Option<Credentials> {
        let read = |name| read_text(&self.path.join(name)).ok();
        Credentials::new(read(CHAIN)?, read(KEY)?, &read(ROOTS)?).ok()
    }

    /// Replaces the certificate, its key and the roots, all at once.
    ///
    /// # Errors
    /// Any I/O error. The previous files stay.
    pub(crate) fn publish(
        &self,
        credentials: &Credentials,
        roots: &RootSet,
    ) -> Result<(), Problem> {
        let pem = roots.to_pem();
        let files = [
            (CHAIN, credentials.chain.as_bytes(), 0o644),
            (KEY, credentials.key.as_bytes(), 0o600),
            (ROOTS, pem.as_bytes(), 0o644),
        ];
        self.swap(&files).map_err(|error| self.unwritable(&error))
    }

    /// Writes the bootstrap and returns its path.
    ///
    /// # Errors
    /// Any I/O error.
    pub(crate) fn write_bootstrap(&self, text: &str) -> Result<PathBuf, Problem> {
        let path = self.path.join("bootstrap.json");
        self.replace(&path, text.as_bytes()).map_err(|error| self.unwritable(&error))?;
        Ok(path)
    }

    fn write_sds_files(&self) -> io::Result<()> {
        let [chain, key, roots] = [CHAIN, KEY, ROOTS].map(|name| self.path.join(name));
        let [certificate, trusted] =
            PemFiles { chain: &chain, key: &key, roots: &roots }.sds_files();
        // JSON is valid YAML.
        self.replace(&self.sds_certificate(), format!("{certificate:#}\n").as_bytes())?;
        self.replace(&self.sds_roots(), format!("{trusted:#}\n").as_bytes())
    }

    fn swap(&self, files: &[(&str, &[u8], u32)]) -> io::Result<()> {
        let name = format!("{GENERATION}{:016x}", rand::random::<u64>());
        let (folder, link) = (self.path.join(&name), self.path.join(format!("{DATA}.new")));
        let swapped = DirBuilder::new()
            .mode(0o755)
            .create(&folder)
            .and_then(|()| {
                files
                    .iter()
                    .try_for_each(|(name, bytes, mode)| create(&folder.join(name), bytes, *mode))
            })
            .and_then(|()| remove_if_there(&link))
            .and_then(|()| symlink(&name, &link))
            .and_then(|()| fs::rename(&link, self.path.join(DATA)));
        if swapped.is_err() {
            let _ = fs::remove_dir_all(&folder);
            let _ = fs::remove_file(&link);
        }
        swapped?;
        for (name, ..) in files {
            let path = self.path.join(name);
            if fs::symlink_metadata(&path).is_err() {
                symlink(Path::new(DATA).join(name), path)?;
            }
        }
        // Old keys are no longer needed, so they are removed.
        for entry in fs::read_dir(&self.path)?.filter_map(Result::ok) {
            let old = entry.file_name();
            if old.to_string_lossy().starts_with(GENERATION) && old != *name {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(())
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // An agent that restarts must not need space for a file that an earlier run has written.
        if read_text(path).is_ok_and(|text| text.as_bytes() == bytes) {
            return Ok(());
        }
        let new = self.path.join(format!(".new-{:016x}", rand::random::<u64>()));
        let replaced = create(&new, bytes, 0o644).and_then(|()| fs::rename(&new, path));
        if replaced.is_err() {
            let _ = fs::remove_file(&new);
        }
        replaced
    }

    fn unwritable(&self, error: &io::Error) -> Problem {
        let fact = format!("{} can't be written: {error}", self.path.display());
        Problem::new(
            "STR0957",
            fact,
            "free space, or allow the agent's user and group to write there; the agent retries",
        )
    }
}

/// Returns whether a file system of this kind is in memory only: tmpfs or ramfs.
fn is_in_memory(kind: i128) -> bool {
    const TMPFS: i128 = 0x0102_1994;
    const RAMFS: i128 = 0x8584_58f6;
    [TMPFS, RAMFS].contains(&(kind & 0xffff_ffff))
}

/// Reads a text file of at most 1 MiB.
///
/// # Errors
/// Any I/O error; [`ErrorKind::FileTooLarge`] if the file is larger.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "it has more than 1 MiB"));
    }
    Ok(text)
}

fn create(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
