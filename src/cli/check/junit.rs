//! Results as JUnit XML, which CI systems read.

use std::path::Path;

use crate::cli::failure::CommandFailure;
use crate::cli::output::clean;

/// The results of one command.
pub(super) struct TestSuite {
    pub(super) name: &'static str,
    pub(super) cases: Vec<TestCase>,
}

/// The result of one check.
pub(super) struct TestCase {
    pub(super) class: String,
    pub(super) name: String,
    pub(super) seconds: f64,
    pub(super) failure: Option<TestFailure>,
}

/// The reason why a test case failed.
pub(super) struct TestFailure {
    /// The error code.
    pub(super) code: String,
    pub(super) message: String,
}

impl TestSuite {
    /// Returns the suite as XML.
    pub(super) fn xml(&self) -> String {
        let failures = self.cases.iter().filter(|case| case.failure.is_some()).count();
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\">\n",
            escaped(self.name),
            self.cases.len()
        );
        for case in &self.cases {
            let TestCase { class, name, seconds, failure } = case;
            let (class, name) = (escaped(class), escaped(name));
            out +=
                &format!("<testcase classname=\"{class}\" name=\"{name}\" time=\"{seconds:.3}\"");
            out += &match failure {
                None => "/>\n".to_owned(),
                Some(TestFailure { code, message }) => {
                    let (code, message) = (escaped(code), escaped(message));
                    format!("><failure type=\"{code}\" message=\"{message}\"/></testcase>\n")
                }
            };
        }
        out + "</testsuite>\n</testsuites>\n"
    }
}

/// Writes a suite to a file.
///
/// # Errors
/// The file can't be written.
pub(super) fn write(file: &Path, suite: &TestSuite) -> Result<(), CommandFailure> {
    std::fs::write(file, suite.xml()).map_err(|error| {
        let text = format!("{} can't be written: {error}", file.display());
        CommandFailure::failed(text).next("choose a file in a writable directory")
    })
}

/// Escapes text for an XML attribute and replaces control characters.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in clean(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}
