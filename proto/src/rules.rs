//! Validation of Envoy messages: the rules in the API's field options (`validate.rules`, protoc-gen-validate), and
//! fields that Envoy no longer accepts (`envoy.annotations.disallowed_by_default`). Envoy applies these rules before it
//! interprets a message.
//!
//! The rules are read from the descriptors, so they match the version of the API that this crate was built with. A rule
//! of an unsupported kind is treated as violated, because it can't be checked. Like all code that uses descriptors,
//! this is slow.

use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{
    DynamicMessage, ExtensionDescriptor, FieldDescriptor, MapKey, ReflectMessage, Value,
};

use crate::json::{Error, decoded, pool};

const ANY: &str = "google.protobuf.Any";
/// The maximum nesting depth. No meaningful message is nested deeper.
const DEPTH_MAX: usize = 32;

/// Returns the first rule that the message in `bytes` violates, as `field: fact`. Messages in a nested `Any` are
/// checked too.
///
/// # Errors
/// The type has no descriptor, or the bytes don't decode.
pub fn violation(type_url: &str, bytes: &[u8]) -> Result<Option<String>, Error> {
    let message = decoded(type_url, bytes)?;
    let rules = ApiRules::new();
    Ok(rules.of_message(&message, 0).err().map(|violation| {
        let at = violation.at.trim_start_matches('.');
        let at = if at.is_empty() { "the message" } else { at };
        format!("{at}: {}", violation.fact)
    }))
}

/// Re-encodes the message so that equal messages have equal bytes: maps are sorted by key, in each nested `Any` as
/// well.
///
/// # Errors
/// The type, or that of a nested `Any`, has no descriptor, or the bytes don't decode.
pub fn canonical(type_url: &str, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    ordered(&decoded(type_url, bytes)?)
}

fn ordered(message: &DynamicMessage) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    if message.descriptor().full_name() == ANY {
        let (type_url, value) = any_parts(message);
        let mut any = message.clone();
        any.set_field_by_name("value", Value::Bytes(canonical(&type_url, &value)?.into()));
        return Ok(any.encode_to_vec());
    }
    // By field number, in the encoder's order. Concatenated fields form one message.
    for (field, value) in message.fields() {
        match value {
            Value::Message(inner) => put(field.number(), &ordered(inner)?, &mut out),
            Value::List(all) if matches!(all.first(), Some(Value::Message(_))) => {
                for inner in all.iter().filter_map(Value::as_message) {
                    put(field.number(), &ordered(inner)?, &mut out);
                }
            }
            Value::Map(entries) => {
                let mut sorted: Vec<_> = entries.iter().collect();
                sorted.sort_by_key(|(key, _)| *key);
                for (key, value) in sorted {
                    put(field.number(), &entry(&field, key, value)?, &mut out);
                }
            }
            plain => {
                let mut alone = DynamicMessage::new(message.descriptor());
                alone.set_field(&field, plain.clone());
                out.extend(alone.encode_to_vec());
            }
        }
    }
    Ok(out)
}

/// Encodes an entry of a map, which is a message with two fields.
fn entry(field: &FieldDescriptor, key: &MapKey, value: &Value) -> Result<Vec<u8>, Error> {
    let kind = field.kind();
    let mut entry = DynamicMessage::new(kind.as_message().expect("that of an entry").clone());
    entry.set_field_by_number(1, key.clone().into());
    let Value::Message(inner) = value else {
        entry.set_field_by_number(2, value.clone());
        return Ok(entry.encode_to_vec());
    };
    let mut out = entry.encode_to_vec();
    put(2, &ordered(inner)?, &mut out);
    Ok(out)
}

fn put(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn any_parts(any: &DynamicMessage) -> (String, Vec<u8>) {
    let text = |name| any.get_field_by_name(name).map(|value| value.into_owned());
    let type_url = text("type_url").and_then(|value| value.as_str().map(str::to_owned));
    let value = text("value").and_then(|value| value.as_bytes().map(|bytes| bytes.to_vec()));
    (type_url.unwrap_or_default(), value.unwrap_or_default())
}

/// A violated rule.
struct BrokenRule {
    /// The path of the field, with a dot before each name.
    at: String,
    fact: String,
}

impl BrokenRule {
    fn new(fact: impl Into<String>) -> Self {
        Self { at: String::new(), fact: fact.into() }
    }

    fn below(self, name: &str) -> Self {
        Self { at: format!(".{name}{}", self.at), ..self }
    }
}

/// The extensions of descriptors that contain rules.
struct ApiRules {
    of_field: ExtensionDescriptor,
    of_oneof: ExtensionDescriptor,
    disallowed: ExtensionDescriptor,
}

impl ApiRules {
    fn new() -> Self {
        let extension = |name: &str| {
            pool()
                .get_extension_by_name(name)
                .expect("all of Envoy's files import it, and a test reads it")
        };
        Self {
            of_field: extension("validate.rules"),
            of_oneof: extension("validate.required"),
            disallowed: extension("envoy.annotations.disallowed_by_default"),
        }
    }

    fn of_message(&self, message: &DynamicMessage, depth: usize) -> Result<(), BrokenRule> {
        if depth > DEPTH_MAX {
            return Err(BrokenRule::new(format!("messages nest deeper than {DEPTH_MAX}")));
        }
        let descriptor = message.descriptor();
        if descriptor.full_name() == ANY {
            let (type_url, value) = any_parts(message);
            let inner =
                decoded(&type_url, &value).map_err(|error| BrokenRule::new(error.to_string()))?;
            return self.of_message(&inner, depth + 1);
        }
        for oneof in descriptor.oneofs() {
            let is_required = oneof.options().get_extension(&self.of_oneof).as_bool() == Some(true);
            if is_required && !oneof.fields().any(|field| message.has_field(&field)) {
                let names: Vec<_> = oneof.fields().map(|field| field.name().to_owned()).collect();
                return Err(BrokenRule::new(format!("one of {} must be set", names.join(", "))));
            }
        }
        for field in descriptor.fields() {
            self.of_field(message, &field, depth).map_err(|fault| fault.below(field.name()))?;
        }
        Ok(())
    }

    fn of_field(
        &self,
        message: &DynamicMessage,
        field: &FieldDescriptor,
        depth: usize,
    ) -> Result<(), BrokenRule> {
        let options = field.options();
        let is_there = message.has_field(field);
        if is_there && options.get_extension(&self.disallowed).as_bool() == Some(true) {
            return Err(BrokenRule::new("Envoy no longer accepts this field"));
        }
        // The rules of a oneof's fields apply only to the field that is set.
        if !is_there && field.containing_oneof().is_some() {
            return Ok(());
        }
        let value = message.get_field(field);
        let rules =
            options.has_extension(&self.of_field).then(|| options.get_extension(&self.of_field));
        if let Some(rules) = rules.as_deref().and_then(Value::as_message) {
            // For an absent message, only `required` is checked.
            let is_absent = !is_there && field.supports_presence();
            let kept = if is_absent { required(rules) } else { self.keeps(&value, rules, field) };
            kept.map_err(BrokenRule::new)?;
            if flag(rules, "message", "skip") {
                return Ok(());
            }
        }
        if !is_there {
            return Ok(());
        }
        match &*value {
            Value::Message(inner) => self.of_message(inner, depth + 1),
            Value::List(all) => {
                let inner =
                    all.iter().enumerate().filter_map(|(at, one)| Some((at, one.as_message()?)));
                for (at, inner) in inner {
                    self.of_message(inner, depth + 1)
                        .map_err(|fault| fault.below(&at.to_string()))?;
                }
                Ok(())
            }
            Value::Map(all) => {
                for inner in all.values().filter_map(Value::as_message) {
                    self.of_message(inner, depth + 1)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks a field's value against the field's rules.
    fn keeps(
        &self,
        value: &Value,
        rules: &DynamicMessage,
        field: &FieldDescriptor,
    ) -> Result<(), String> {
        for (kind, given) in rules.fields() {
            let Some(given) = given.as_message() else { continue };
            match (kind.name(), value) {
                ("repeated", Value::List(all)) => {
                    keeps_count(all.len(), given, ["min_items", "max_items"])?;
                    only(given, &["min_items", "max_items", "items", "unique"])?;
                    let is_twice = |(at, one): (usize, &Value)| all[..at].contains(one);
                    if bool_of(given, "unique") && all.iter().enumerate().any(is_twice) {
                        return Err("it has two equal elements".to_owned());
                    }
                    if let Some(items) =
                        set(given, "items").and_then(|items| items.as_message().cloned())
                    {
                        all.iter().try_for_each(|one| self.keeps(one, &items, field))?;
                    }
                }
                ("map", Value::Map(all)) => {
                    keeps_count(all.len(), given, ["min_pairs", "max_pairs"])?;
                    only(given, &["min_pairs", "max_pairs", "keys", "values"])?;
                    let of = |name| set(given, name).and_then(|one| one.as_message().cloned());
                    if let Some(keys) = of("keys") {
                        let mut all = all.keys().cloned().map(Value::from);
                        all.try_for_each(|key| self.keeps(&key, &keys, field))?;
                    }
                    if let Some(values) = of("values") {
                        all.values().try_for_each(|one| self.keeps(one, &values, field))?;
                    }
                }
                ("string", Value::String(text)) => keeps_text(text, given)?,
                ("bytes", Value::Bytes(bytes)) => {
                    keeps_count(bytes.len(), given, ["min_len", "max_len"])?;
                    only(given, &["min_len", "max_len"])?;
                }
                ("enum", Value::EnumNumber(number)) => keeps_enum(*number, given, field)?,
                ("duration", Value::Message(duration)) => keeps_duration(duration, given)?,
                ("message" | "any", _) => only(given, &["required", "skip"])?,
                ("bool", value) => {
                    only(given, &["const"])?;
                    if set(given, "const").is_some_and(|wanted| wanted != *value) {
                        return Err("it must have the other value".to_owned());
                    }
                }
                // The rules of a wrapper (`UInt32Value`) apply to its content.
                (_, Value::Message(wrapper)) => {
                    let inner = wrapper.get_field_by_number(1).map(|value| value.into_owned());
                    keeps_number(inner.as_ref().and_then(number).ok_or(UNCHECKED)?, given)?;
                }
                (_, value) => keeps_number(number(value).ok_or(UNCHECKED)?, given)?,
            }
        }
        Ok(())
    }
}

/// The fact reported for a rule of an unsupported kind.
pub const UNCHECKED: &str = "it has a rule that is not checked here";

/// Checks the rules of an absent field.
fn required(rules: &DynamicMessage) -> Result<(), String> {
    let is_required = ["message", "any", "duration", "timestamp"]
        .iter()
        .any(|kind| flag(rules, kind, "required"));
    if is_required { Err("it must be set".to_owned()) } else { Ok(()) }
}

fn set(message: &DynamicMessage, name: &str) -> Option<Value> {
    message
        .has_field_by_name(name)
        .then(|| message.get_field_by_name(name).map(|value| value.into_owned()))?
}

fn bool_of(message: &DynamicMessage, name: &str) -> bool {
    set(message, name).and_then(|value| value.as_bool()) == Some(true)
}

fn flag(rules: &DynamicMessage, kind: &str, name: &str) -> bool {
    set(rules, kind).and_then(|kind| Some(bool_of(kind.as_message()?, name))) == Some(true)
}

/// Checks that `given` contains no other rules than `known`.
fn only(given: &DynamicMessage, known: &[&str]) -> Result<(), String> {
    match given.fields().all(|(field, _)| known.contains(&field.name())) {
        true => Ok(()),
        false => Err(UNCHECKED.to_owned()),
    }
}

fn keeps_count(
    count: usize,
    given: &DynamicMessage,
    [least, most]: [&str; 2],
) -> Result<(), String> {
    let of = |name| set(given, name).and_then(|value| value.as_u64());
    let count = count as u64;
    match (of(least), of(most)) {
        (Some(least), _) if count < least => Err(format!("its length must be at least {least}")),
        (_, Some(most)) if count > most => Err(format!("its length must be at most {most}")),
        _ => Ok(()),
    }
}

fn keeps_text(text: &str, given: &DynamicMessage) -> Result<(), String> {
    only(
        given,
        &[
            "min_len",
            "max_len",
            "min_bytes",
            "max_bytes",
            "prefix",
            "in",
            "not_in",
            "ignore_empty",
            "well_known_regex",
            "strict",
            "const",
        ],
    )?;
    if text.is_empty() && bool_of(given, "ignore_empty") {
        return Ok(());
    }
    keeps_count(text.chars().count(), given, ["min_len", "max_len"])?;
    keeps_count(text.len(), given, ["min_bytes", "max_bytes"])?;
    let listed = |name| {
        set(given, name)
            .and_then(|value| Some(value.as_list()?.iter().any(|one| one.as_str() == Some(text))))
    };
    if listed("in") == Some(false) || listed("not_in") == Some(true) {
        return Err(format!("{text:?} is not an allowed value"));
    }
    if let Some(prefix) = set(given, "prefix").and_then(|value| value.as_str().map(str::to_owned))
        && !text.starts_with(&prefix)
    {
        return Err(format!("it must start with {prefix:?}"));
    }
    if set(given, "const").is_some_and(|wanted| wanted.as_str() != Some(text)) {
        return Err("it must have another value".to_owned());
    }
    let is_control = |one: char| matches!(one, '\0' | '\n' | '\r');
    match set(given, "well_known_regex").and_then(|value| value.as_enum_number()) {
        // Not strict: everything except line ends and NUL. (protoc-gen-validate, `strict: false`.)
        Some(1 | 2) if !strict(given) && !text.chars().any(is_control) => Ok(()),
        // HTTP_HEADER_NAME: a token, with a leading colon for pseudo-headers of HTTP/2.
        Some(1) if is_token(text.strip_prefix(':').unwrap_or(text)) => Ok(()),
        // HTTP_HEADER_VALUE.
        Some(2) if text.chars().all(|one| one == '\t' || !one.is_control()) => Ok(()),
        Some(_) => Err(format!("{text:?} contains characters that are invalid in a header")),
        None => Ok(()),
    }
}

fn strict(given: &DynamicMessage) -> bool {
    set(given, "strict").and_then(|value| value.as_bool()) != Some(false)
}

fn is_token(text: &str) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_|~`".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of_token)
}

fn keeps_enum(number: i32, given: &DynamicMessage, field: &FieldDescriptor) -> Result<(), String> {
    only(given, &["defined_only", "in", "not_in", "const"])?;
    let kind = field.kind();
    let is_defined = kind.as_enum().is_none_or(|kind| kind.get_value(number).is_some());
    let listed = |name| {
        set(given, name)
            .and_then(|value| Some(value.as_list()?.iter().any(|one| one.as_i32() == Some(number))))
    };
    let is_other = set(given, "const").is_some_and(|wanted| wanted.as_i32() != Some(number));
    if (bool_of(given, "defined_only") && !is_defined)
        || listed("in") == Some(false)
        || listed("not_in") == Some(true)
        || is_other
    {
        return Err("its value is not allowed".to_owned());
    }
    Ok(())
}

fn keeps_duration(duration: &DynamicMessage, given: &DynamicMessage) -> Result<(), String> {
    only(given, &["required", "lt", "lte", "gt", "gte"])?;
    let time = nanoseconds(duration);
    let of = |name| set(given, name).and_then(|limit| Some(nanoseconds(limit.as_message()?)));
    let fits = of("lt").is_none_or(|limit| time < limit)
        && of("lte").is_none_or(|limit| time <= limit)
        && of("gt").is_none_or(|limit| time > limit)
        && of("gte").is_none_or(|limit| time >= limit);
    if fits { Ok(()) } else { Err("its duration is out of range".to_owned()) }
}

fn nanoseconds(duration: &DynamicMessage) -> i128 {
    let part = |name| {
        duration.get_field_by_name(name).and_then(|value| match &*value {
            Value::I64(number) => Some(i128::from(*number)),
            Value::I32(number) => Some(i128::from(*number)),
            _ => None,
        })
    };
    part("seconds").unwrap_or_default() * 1_000_000_000 + part("nanos").unwrap_or_default()
}

fn number(value: &Value) -> Option<f64> {
    Some(match value {
        Value::I32(number) => f64::from(*number),
        Value::U32(number) => f64::from(*number),
        // The limits of these fields are far below the values that a conversion would round.
        Value::I64(number) => *number as f64,
        Value::U64(number) => *number as f64,
        Value::F32(number) => f64::from(*number),
        Value::F64(number) => *number,
        _ => return None,
    })
}

fn keeps_number(found: f64, given: &DynamicMessage) -> Result<(), String> {
    only(given, &["lt", "lte", "gt", "gte", "in", "const", "ignore_empty"])?;
    if found == 0.0 && bool_of(given, "ignore_empty") {
        return Ok(());
    }
    let of = |name| set(given, name).and_then(|value| number(&value));
    let (above, below) = (
        of("gt").is_none_or(|limit| found > limit) && of("gte").is_none_or(|limit| found >= limit),
        of("lt").is_none_or(|limit| found < limit) && of("lte").is_none_or(|limit| found <= limit),
    );
    let listed = set(given, "in").is_none_or(|value| {
        value.as_list().is_some_and(|all| all.iter().any(|one| number(one) == Some(found)))
    });
    let is_const = of("const").is_none_or(|wanted| found.to_bits() == wanted.to_bits());
    match above && below && listed && is_const {
        true => Ok(()),
        false => Err(format!("{found} is out of range")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::json::from_json;

    const LIMIT: &str =
        "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";

    fn fault(type_url: &str, json: &Json) -> Option<String> {
        let bytes = from_json(type_url, json).expect("it is read");
        violation(type_url, &bytes).expect("it is known")
    }

    #[test]
    fn violated_rules_are_named() {
        let bucket = |tokens: u32, interval: &str| json!({ "stat_prefix": "a", "token_bucket": { "max_tokens": tokens, "fill_interval": interval } });
        assert_eq!(fault(LIMIT, &bucket(1, "1s")), None);
        let cases = [
            (json!({}), "stat_prefix: its length must be at least 1"),
            (bucket(1, "0s"), "token_bucket.fill_interval: its duration is out of range"),
            (
                json!({ "stat_prefix": "a", "token_bucket": { "max_tokens": 1 } }),
                "token_bucket.fill_interval: it must be set",
            ),
            (
                json!({ "stat_prefix": "a", "status": { "code": 299_999 } }),
                "status.code: its value is not allowed",
            ),
        ];
        for (json, wanted) in cases {
            assert_eq!(fault(LIMIT, &json).as_deref(), Some(wanted), "{json}");
        }
    }

    #[test]
    fn rules_apply_to_keys_of_maps() {
        const METADATA: &str = "envoy.config.core.v3.Metadata";
        let named = |name: &str| json!({ "filter_metadata": { name: { "a": 1 } } });
        assert_eq!(fault(METADATA, &named("istio")), None);
        let wanted = "filter_metadata: its length must be at least 1";
        assert_eq!(fault(METADATA, &named("")).as_deref(), Some(wanted));
    }

    #[test]
    fn rules_apply_within_any() {
        const FILTER: &str =
            "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter";
        let filter = json!({ "name": "a", "typed_config": { "@type": LIMIT } });
        let wanted = "typed_config.stat_prefix: its length must be at least 1";
        assert_eq!(fault(FILTER, &filter).as_deref(), Some(wanted));
    }

    #[test]
    fn equal_messages_have_equal_bytes() {
        const LUA: &str = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua";
        let codes: serde_json::Map<String, Json> =
            (0..20).map(|at| (format!("{at}"), json!({ "inline_string": "x" }))).collect();
        let json =
            json!({ "source_codes": codes, "filter_context": { "a": 1, "b": { "c": 2, "d": 3 } } });
        let made =
            || canonical(LUA, &from_json(LUA, &json).expect("it is read")).expect("it is known");
        let first = made();
        assert!((0..8).all(|_| made() == first));
        assert_eq!(crate::json::to_json(LUA, &first).expect("a message"), {
            let bytes = from_json(LUA, &json).expect("it is read");
            crate::json::to_json(LUA, &bytes).expect("a message")
        });
    }
}
