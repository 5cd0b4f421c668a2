//! The text format of Prometheus.

use std::fmt::{self, Write};

/// A family of samples.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl<'a> Family<'a> {
    /// Starts a gauge.
    ///
    /// # Errors
    /// Never in practice, because it writes into a string.
    pub fn gauge(text: &'a mut String, name: &'static str, help: &str) -> Result<Self, fmt::Error> {
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge")?;
        Ok(Self { text, name })
    }

    /// Starts a counter.
    ///
    /// # Errors
    /// Never in practice, because it writes into a string.
    pub fn counter(
        text: &'a mut String,
        name: &'static str,
        help: &str,
    ) -> Result<Self, fmt::Error> {
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter")?;
        Ok(Self { text, name })
    }

    /// Adds a sample with these labels.
    ///
    /// # Errors
    /// Never in practice, because it writes into a string.
    pub fn sample(
        &mut self,
        labels: &[(&str, &str)],
        value: impl fmt::Display,
    ) -> Result<&mut Self, fmt::Error> {
        self.text.push_str(self.name);
        for (index, (key, label)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let label = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(self.text, "{open}{key}=\"{label}\"")?;
        }
        let close = if labels.is_empty() { "" } else { "}" };
        writeln!(self.text, "{close} {value}")?;
        Ok(self)
    }
}
