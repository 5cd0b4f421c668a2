//! Bounds the length of reasons, statuses, warnings and log lines, which may repeat text of a caller or an object.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

/// Maximum length of a reason, status, warning or log line, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Shortens a text to [`TEXT_BYTES_MAX`] bytes. A shortened text ends with the number of omitted
/// bytes.
pub fn bounded(text: impl fmt::Display) -> String {
    cut(text.to_string(), TEXT_BYTES_MAX)
}

/// Returns the start of a text, with at most `bytes_max` bytes, without splitting a character.
pub fn head(text: &str, bytes_max: usize) -> &str {
    let most = text.len().min(bytes_max);
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    &text[..end]
}

/// Shortens a text to `bytes_max` bytes at the end of a word. A shortened text ends with `…`.
pub fn shortened(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let start = head(text, bytes_max.saturating_sub('…'.len_utf8()));
    let is_whole = text[start.len()..].starts_with(' ');
    // A very long word is cut, so that most of the text remains.
    let end = start.rfind(' ').filter(|end| !is_whole && *end >= bytes_max / 2);
    let kept = &start[..end.unwrap_or(start.len())];
    format!("{}…", kept.trim_end_matches([' ', ',', ';', ':']))
}

/// Shortens a text to `most` bytes.
fn cut(mut text: String, most: usize) -> String {
    // Enough for the number of bytes of any text.
    const END_BYTES: usize = 40;
    if text.len() > most {
        let kept = head(&text, most.saturating_sub(END_BYTES)).len();
        let more = text.len() - kept;
        text.truncate(kept);
        let _infallible = write!(text, "... ({more} more bytes)");
    }
    text
}

/// Forwards log lines to a writer, each in one write, and shortens long ones.
#[derive(Debug)]
pub struct BoundedLines<W>(pub W);

impl<W: Write> Write for BoundedLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_all(line)?;
        Ok(line.len())
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        if line.len() <= TEXT_BYTES_MAX {
            return self.0.write_all(line);
        }
        let text = String::from_utf8_lossy(line);
        let end = if text.ends_with('\n') { "\n" } else { "" };
        // Only strings inside of a JSON line are shortened, so that it stays valid JSON.
        let cut = match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text) {
            Ok(fields) => cut_fields(fields),
            Err(_) => cut(text.trim_end().to_owned(), TEXT_BYTES_MAX - 1),
        };
        self.0.write_all(format!("{cut}{end}").as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Encodes a JSON line, shortening its strings until it is short enough.
fn cut_fields(mut fields: serde_json::Map<String, serde_json::Value>) -> String {
    for most in [1024, 256, 64] {
        for value in fields.values_mut() {
            let written = match &mut *value {
                serde_json::Value::String(text) if text.len() > most => std::mem::take(text),
                value if value.is_object() || value.is_array() => value.to_string(),
                _ => continue,
            };
            if written.len() > most {
                *value = cut(written, most).into();
            }
        }
        let line = serde_json::Value::Object(fields.clone()).to_string();
        if line.len() < TEXT_BYTES_MAX {
            return line;
        }
    }
    cut(serde_json::Value::Object(fields).to_string(), TEXT_BYTES_MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shortened_at_the_end_of_a_word() {
        let text = "the issuer refuses, and retries";
        assert_eq!(shortened(text, text.len()), text);
        assert_eq!(shortened(text, 30), "the issuer refuses, and…");
        assert_eq!(shortened(text, 26), "the issuer refuses, and…");
        assert_eq!(shortened(text, 22), "the issuer refuses…");
        assert_eq!(shortened("name=aaaaaaaaaaaaaaaa", 10), "name=aa…");
        assert_eq!(shortened("a bbbbbbbbbbbbbbbbbb", 12), "a bbbbbbb…");
        assert_eq!(shortened("ääääää", 8), "ää…");
    }

    #[test]
    fn text_is_truncated_to_four_kilobytes_with_the_omitted_length() {
        assert_eq!(bounded("short"), "short");
        let long = bounded("ä".repeat(500_000));
        assert!(long.len() <= TEXT_BYTES_MAX, "{}", long.len());
        let kept = long.chars().filter(|one| *one == 'ä').count();
        assert!(long.ends_with(&format!("... ({} more bytes)", 1_000_000 - 2 * kept)), "{long}");
    }

    #[test]
    fn log_line_is_cut_and_json_stays_json() {
        let written = |line: &str| {
            let mut lines = BoundedLines(Vec::new());
            lines.write_all(line.as_bytes()).expect("written");
            String::from_utf8(lines.0).expect("text")
        };
        assert_eq!(written("short\n"), "short\n");
        let long = written(&format!("INFO {}\n", "x".repeat(300_000)));
        assert!(long.len() <= TEXT_BYTES_MAX && long.ends_with("bytes)\n"), "{}", long.len());
        let line = serde_json::json!({
            "level": "WARN", "reason": "x\n".repeat(200_000), "more": ["y".repeat(10_000)],
        });
        let cut = written(&format!("{line}\n"));
        assert!(cut.len() <= TEXT_BYTES_MAX, "{}", cut.len());
        let fields: serde_json::Value = serde_json::from_str(&cut).expect("one line of JSON");
        assert_eq!(fields["level"], "WARN");
        assert!(fields["reason"].as_str().is_some_and(|text| text.ends_with("bytes)")));
    }
}
