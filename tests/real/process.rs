//! A child process that ends with the rig: killed on drop, and by the kernel if the rig itself is
//! killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A running program whose output is in files.
pub(crate) struct Process {
    child: Child,
    name: String,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts `command` (from [`crate::netns::Netns::command`]) with `NAME.out` and `NAME.err` in
    /// `folder`.
    pub(crate) fn spawn(mut command: Command, folder: &Path, name: &str) -> Self {
        let stdout = folder.join(format!("{name}.out"));
        let stderr = folder.join(format!("{name}.err"));
        command.stdin(Stdio::null());
        command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        let child =
            command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Self { child, name: name.to_owned(), stdout, stderr }
    }

    pub(crate) fn stdout(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Returns the end of stderr, for error messages.
    pub(crate) fn log_end(&self) -> String {
        let text =
            String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        format!("{} said last:\n{}", self.name, lines[lines.len().saturating_sub(15)..].join("\n"))
    }

    /// Returns the lines of stderr that contain `part`.
    pub(crate) fn log_lines(&self, part: &str) -> Vec<String> {
        let bytes = std::fs::read(&self.stderr).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }

    /// Returns its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our own child")
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
