//! A bounded file of lines with checksums, to which lines are appended.
//!
//! A crash leaves at most one incomplete line, which is dropped on reading. Suitable for
//! informational data: appended lines are not synced individually, so a power failure loses the
//! last seconds.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::{SECRET, read_at_most, replace};

/// A file of lines that only this process writes.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    /// The first line, which identifies the format.
    head: &'static str,
    lines_max: usize,
    bytes_max: u64,
    lines: usize,
    bytes: u64,
    /// Whether lines may be appended: the file exists and ends with a complete line.
    whole: bool,
}

/// The content of a file.
#[derive(Debug, Default)]
pub struct ReadLines {
    /// The lines, without checksums and line ends.
    pub lines: Vec<String>,
    /// The reason why some or all of the content was not read, as text.
    pub damage: Option<String>,
}

impl LineFile {
    /// Opens the file, which starts with the line `head` and has at most this many lines and bytes.
    pub fn open(
        path: PathBuf,
        head: &'static str,
        (lines_max, bytes_max): (usize, u64),
    ) -> (Self, ReadLines) {
        let mut file = Self { path, head, lines_max, bytes_max, lines: 0, bytes: 0, whole: false };
        let mut read = ReadLines::default();
        let text = match read_at_most(&file.path, bytes_max) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                let is_there = error.kind() != ErrorKind::NotFound;
                read.damage = is_there.then(|| error.to_string());
                return (file, read);
            }
        };
        let rest = text.strip_prefix(head).and_then(|rest| rest.strip_prefix('\n'));
        let Some(rest) = rest else {
            read.damage = Some(format!("its first line is not {head:?}"));
            return (file, read);
        };
        let mut damaged = 0;
        for line in rest.split_inclusive('\n') {
            match checked(line) {
                Some(line) => read.lines.push(line.to_owned()),
                None => damaged += 1,
            }
        }
        if damaged > 0 {
            let fact = format!("{damaged} lines are damaged");
            read.damage = Some(fact);
        }
        (file.lines, file.bytes, file.whole) = (read.lines.len(), text.len() as u64, damaged == 0);
        (file, read)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends lines, which contain no line ends. If the file would exceed its limits or is
    /// damaged, it is rewritten with the lines that `kept` returns, which include the new ones.
    ///
    /// # Errors
    /// Returns the error of the system. The next call rewrites the file.
    pub fn append(
        &mut self,
        lines: &[String],
        kept: impl FnOnce() -> Vec<String>,
    ) -> io::Result<()> {
        let adds: u64 = lines.iter().map(|line| written_len(line)).sum();
        let fits =
            self.lines + lines.len() <= self.lines_max && self.bytes + adds <= self.bytes_max;
        if self.whole && fits {
            let text: String = lines.iter().map(|line| with_sum(line)).collect();
            self.whole = false;
            let mut file = OpenOptions::new().append(true).open(&self.path)?;
            file.write_all(text.as_bytes())?;
            self.whole = true;
            self.lines += lines.len();
            self.bytes += text.len() as u64;
            return Ok(());
        }
        let kept = kept();
        let mut text = format!("{}\n", self.head);
        // Only the last lines, if not all fit.
        let room = self.bytes_max / 2;
        let mut from = kept.len();
        let mut taken = 0;
        while from > 0 && taken + written_len(&kept[from - 1]) <= room {
            from -= 1;
            taken += written_len(&kept[from]);
        }
        kept[from..].iter().for_each(|line| text += &with_sum(line));
        self.whole = false;
        replace(&self.path, text.as_bytes(), SECRET)?;
        self.whole = true;
        (self.lines, self.bytes) = (kept.len() - from, text.len() as u64);
        Ok(())
    }
}

/// Returns the length of a line with its checksum, in bytes.
fn written_len(line: &str) -> u64 {
    // 16 digits, a space, and the line end.
    line.len() as u64 + 18
}

fn with_sum(line: &str) -> String {
    format!("{:016x} {line}\n", xxh3_64(line.as_bytes()))
}

/// Returns a complete line without its checksum, if the checksum is correct.
fn checked(line: &str) -> Option<&str> {
    let (sum, text) = line.strip_suffix('\n')?.split_once(' ')?;
    (u64::from_str_radix(sum, 16).ok()? == xxh3_64(text.as_bytes())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "a test 1";

    fn open(path: &Path) -> (LineFile, ReadLines) {
        LineFile::open(path.to_owned(), HEAD, (6, 1000))
    }

    fn lines(of: std::ops::Range<usize>) -> Vec<String> {
        of.map(|number| format!("line {number}")).collect()
    }

    #[test]
    fn incomplete_line_after_a_crash_is_dropped_and_repaired() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lines");
        let (mut file, read) = open(&path);
        assert!(read.lines.is_empty() && read.damage.is_none());
        file.append(&lines(0..2), || lines(0..2)).expect("written");
        file.append(&lines(2..3), || panic!("it fits")).expect("appended");
        let whole = std::fs::read(&path).expect("there");
        for cut in HEAD.len() + 1..whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("cut");
            let (mut file, read) = open(&path);
            let kept = read.lines.len();
            assert!(kept < 3 && read.lines == lines(0..kept), "cut at {cut}: {read:?}");
            let all = [&read.lines[..], &["new".to_owned()]].concat();
            file.append(&all[kept..], || all.clone()).expect("written");
            let (file, read) = open(&path);
            assert!(file.whole && read.damage.is_none() && read.lines == all, "cut at {cut}");
        }
        let text = String::from_utf8(whole).expect("text");
        std::fs::write(&path, text.replacen("line 1", "line 9", 1)).expect("changed");
        let (_, read) = open(&path);
        assert_eq!((read.lines.len(), read.damage.is_some()), (2, true));
        std::fs::write(&path, [0xff; 50]).expect("changed");
        assert!(open(&path).1.damage.is_some());
    }

    #[test]
    fn file_stays_bounded_and_keeps_the_last_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lines");
        let (mut file, _) = open(&path);
        for number in 0..100 {
            file.append(&lines(number..number + 1), || {
                lines((number + 1).saturating_sub(3)..number + 1)
            })
            .expect("written");
            let (_, read) = open(&path);
            assert!(read.lines.len() <= 6 && read.lines.ends_with(&lines(number..number + 1)));
        }
        let long: Vec<String> = (0..4).map(|_| "x".repeat(200)).collect();
        file.append(&long, || long.clone()).expect("written");
        let (_, read) = open(&path);
        assert_eq!(read.lines.len(), 2, "no more than there is room for");
    }
}
