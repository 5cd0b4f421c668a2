//! Access logs of proxies for requests and connections. (Istio, "Envoy Access Logs" and
//! `MeshConfig.accessLogFile`, `accessLogFormat`, `accessLogEncoding`.)

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::command_operators;

/// The file and the format of an access log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessLog {
    /// The path of a file at the proxy; never empty.
    pub path: String,
    /// The format of an entry.
    pub format: AccessLogFormat,
}

/// The format of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AccessLogFormat {
    /// Text with Envoy's command operators, including the line end.
    Text(Arc<str>),
    /// A JSON object per line, with command operators in its strings.
    Json(Arc<Value>),
}

/// The encoding of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum AccessLogEncoding {
    /// Text.
    #[default]
    #[serde(rename = "TEXT")]
    Text,
    /// JSON.
    #[serde(rename = "JSON")]
    Json,
}

/// The default fields, with their names in JSON. Programs that read access logs of Istio's proxies
/// rely on the order in text and on the names in JSON. (Istio, "Envoy Access Logs".)
const FIELDS: [(&str, &str); 24] = [
    ("start_time", "[%START_TIME%]"),
    ("method", "\"%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%\""),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    ("connection_termination_details", "%CONNECTION_TERMINATION_DETAILS%"),
    ("upstream_transport_failure_reason", "\"%UPSTREAM_TRANSPORT_FAILURE_REASON%\""),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("duration", "%DURATION%"),
    ("upstream_service_time", "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%"),
    ("x_forwarded_for", "\"%REQ(X-FORWARDED-FOR)%\""),
    ("user_agent", "\"%REQ(USER-AGENT)%\""),
    ("request_id", "\"%REQ(X-REQUEST-ID)%\""),
    ("authority", "\"%REQ(:AUTHORITY)%\""),
    ("upstream_host", "\"%UPSTREAM_HOST%\""),
    ("upstream_cluster", "%UPSTREAM_CLUSTER_RAW%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("requested_server_name", "%REQUESTED_SERVER_NAME%"),
    ("route_name", "%ROUTE_NAME%"),
];

impl AccessLog {
    /// Returns a log in Istio's default text format, in this file.
    pub fn to_file(path: &str) -> Self {
        Self { path: path.to_owned(), format: AccessLogFormat::usual(AccessLogEncoding::Text) }
    }
}

/// Checks that proxies may be able to write this file. Whether it can be opened at a proxy is
/// unknown here. A proxy that cannot open it rejects every listener, so obviously invalid paths are
/// rejected here.
///
/// # Errors
/// If the path is not absolute, contains control characters, or is a directory; as text.
pub(super) fn writable_path(path: String) -> Result<String, String> {
    const WELL_KNOWN_FOLDERS: [&str; 6] = ["/tmp", "/dev", "/var", "/var/log", "/etc", "/proc"];
    if !path.starts_with('/') {
        return Err(format!("{path:?} is not an absolute path such as /dev/stdout"));
    }
    if path.chars().any(char::is_control) {
        return Err(format!("{path:?} has control characters"));
    }
    if path.ends_with(['/', '.']) || WELL_KNOWN_FOLDERS.contains(&path.as_str()) {
        return Err(format!("{path:?} is a directory, not a file"));
    }
    Ok(path)
}

impl AccessLogFormat {
    /// Parses the format of a mesh config; an empty text means Istio's default format.
    ///
    /// # Errors
    /// If Envoy could not parse it; as text.
    pub(super) fn read(encoding: AccessLogEncoding, format: &str) -> Result<Self, String> {
        match (encoding, format.trim().is_empty()) {
            (_, true) => Ok(Self::usual(encoding)),
            (AccessLogEncoding::Text, _) => Self::text(format),
            (AccessLogEncoding::Json, _) => {
                Self::json(serde_json::from_str(format).map_err(|error| {
                    format!("accessLogEncoding JSON requires a JSON object: {error}")
                })?)
            }
        }
    }

    /// Returns a text format; adds the line end if it is missing.
    ///
    /// # Errors
    /// If Envoy could not parse it; as text.
    pub fn text(format: &str) -> Result<Self, String> {
        command_operators::check(format)?;
        let end = if format.ends_with('\n') { "" } else { "\n" };
        Ok(Self::Text(format!("{format}{end}").into()))
    }

    /// Returns a JSON format.
    ///
    /// # Errors
    /// If it is not an object, or Envoy could not parse a string in it; as text.
    pub fn json(fields: Value) -> Result<Self, String> {
        fn check(value: &Value) -> Result<(), String> {
            match value {
                Value::String(text) => {
                    command_operators::check(text).map_err(|fact| format!("{text:?} {fact}"))
                }
                Value::Array(values) => values.iter().try_for_each(check),
                Value::Object(fields) => fields.values().try_for_each(check),
                Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
            }
        }
        if !fields.is_object() {
            return Err("accessLogEncoding JSON requires a JSON object".to_owned());
        }
        check(&fields)?;
        Ok(Self::Json(Arc::new(fields)))
    }

    /// Returns Istio's default format.
    pub fn usual(encoding: AccessLogEncoding) -> Self {
        match encoding {
            AccessLogEncoding::Text => {
                let operators = FIELDS.map(|(_, operator)| operator);
                Self::Text(format!("{}\n", operators.join(" ")).into())
            }
            AccessLogEncoding::Json => {
                let bare = |operator: &str| operator.trim_matches(['"', '[', ']']).to_owned();
                let fields =
                    FIELDS.map(|(name, operator)| (name.to_owned(), bare(operator).into()));
                Self::Json(Arc::new(Value::Object(fields.into_iter().collect())))
            }
        }
    }

    /// Returns the name of the encoding in a mesh config.
    pub(super) fn encoding(&self) -> &'static str {
        match self {
            Self::Text(_) => "TEXT",
            Self::Json(_) => "JSON",
        }
    }
}

/// Formats it as in a mesh config.
impl fmt::Display for AccessLogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Json(fields) => write!(f, "{fields}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_that_no_proxy_can_write_are_refused() {
        for path in ["rel/x", "", "/tmp", "/var/log/", "/a\0b", "/a/.."] {
            let refused = writable_path(path.to_owned());
            assert!(refused.is_err(), "{path:?}");
        }
        for path in ["/dev/stdout", "/var/log/envoy/access.log"] {
            assert_eq!(writable_path(path.to_owned()).as_deref(), Ok(path));
        }
    }

    use super::*;

    #[test]
    fn default_format_has_the_fields_that_programs_rely_on() {
        let AccessLogFormat::Text(text) = AccessLogFormat::usual(AccessLogEncoding::Text) else {
            panic!("no text")
        };
        let start = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% ";
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with(" %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n"), "{text}");
        assert_eq!(AccessLogFormat::text(&text), Ok(AccessLogFormat::Text(Arc::clone(&text))));
        let AccessLogFormat::Json(fields) = AccessLogFormat::usual(AccessLogEncoding::Json) else {
            panic!("no JSON")
        };
        assert_eq!(fields["start_time"], "%START_TIME%");
        assert_eq!(fields["protocol"], "%PROTOCOL%");
        assert_eq!(fields["upstream_cluster"], "%UPSTREAM_CLUSTER_RAW%");
        assert!(AccessLogFormat::json((*fields).clone()).is_ok());
    }

    #[test]
    fn format_that_envoy_cannot_parse_is_refused() {
        use AccessLogEncoding::{Json, Text};
        let text = AccessLogFormat::read(Text, "%PROTOCOL% %TRAILER(x)%").expect("good");
        assert_eq!(text, AccessLogFormat::Text("%PROTOCOL% %TRAILER(x)%\n".into()));
        for (encoding, format, part) in [
            (Text, "50%", "neither doubled"),
            (Text, "%NO_SUCH_THING%", "%NO_SUCH_THING%"),
            (Json, "%PROTOCOL%", "a JSON object"),
            (Json, "[]", "a JSON object"),
            (Json, r#"{"a": {"b": ["%REQ(%"]}}"#, "is not closed"),
        ] {
            let fact = AccessLogFormat::read(encoding, format).expect_err(format);
            assert!(fact.contains(part), "{fact}");
        }
    }
}
