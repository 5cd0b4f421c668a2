//! Deserializes JSON values and records unread fields (misspelt or unsupported) and the path of an
//! error. A type that reads an entire `serde_json::Value` reads every field of the value.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Unexpected,
    Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Map, Value, map};

/// Maximum number of unread fields that are named per object.
const NAMED_MAX: usize = 16;

/// The fields that were not read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnreadFields {
    paths: Vec<String>,
    /// Number of further fields that are not named.
    more: usize,
}

impl UnreadFields {
    /// Returns the paths of the fields, each with a message.
    pub fn into_messages(self) -> impl Iterator<Item = (String, String)> {
        let Self { paths, more } = self;
        let last = paths.len().saturating_sub(1);
        paths.into_iter().enumerate().map(move |(at, path)| {
            let mut text = "unknown or unsupported field: it has no effect".to_owned();
            if at == last && more > 0 {
                text += &format!("; {more} more fields have no effect either");
            }
            (path, text)
        })
    }
}

/// Reads the `spec` of an object, which may be absent. Paths start at the object's root.
///
/// # Errors
/// Returns the path of the first invalid field and the reason.
pub fn read_spec<T: DeserializeOwned>(
    object: &Value,
) -> Result<(T, UnreadFields), (String, Error)> {
    let empty = Value::Object(Map::new());
    let spec = object.get("spec").filter(|spec| !spec.is_null()).unwrap_or(&empty);
    let under = |path: &str| format!("spec.{path}");
    let (read, mut unread) = read(spec).map_err(|(path, error)| {
        (if path.is_empty() { "spec".to_owned() } else { under(&path) }, error)
    })?;
    unread.paths.iter_mut().for_each(|path| *path = under(path));
    Ok((read, unread))
}

/// Reads a value of a type that knows all of its fields.
///
/// # Errors
/// Returns the path of the innermost invalid value, which is empty for the entire value, and the
/// reason.
pub fn read_known<T: DeserializeOwned>(value: &Value) -> Result<T, (String, Error)> {
    read(value).map(|(read, _)| read)
}

/// Reads a value.
///
/// # Errors
/// Returns the path of the innermost invalid value, which is empty for the entire value, and the
/// reason.
fn read<T: DeserializeOwned>(value: &Value) -> Result<(T, UnreadFields), (String, Error)> {
    let notes = Notes::default();
    match T::deserialize(ValueReader { value, place: ValuePlace::Root, notes: &notes }) {
        Ok(read) => Ok((read, notes.unread.into_inner())),
        Err(error) => Err((notes.failed.into_inner().unwrap_or_default(), error)),
    }
}

/// Records made while a value is read.
#[derive(Default)]
struct Notes {
    unread: RefCell<UnreadFields>,
    /// The path of the innermost value that could not be read.
    failed: RefCell<Option<String>>,
}

impl Notes {
    /// Records the place of an error, unless a value inside of it has failed.
    #[cold]
    fn record_failure(&self, place: &ValuePlace<'_>) {
        self.failed.borrow_mut().get_or_insert_with(|| place.to_string());
    }
}

/// The path of a value.
#[derive(Clone, Copy)]
enum ValuePlace<'a> {
    Root,
    Field(&'a ValuePlace<'a>, &'a str),
    Item(&'a ValuePlace<'a>, usize),
}

impl fmt::Display for ValuePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(of, name) => write!(f, "{of}.{name}"),
            Self::Item(of, at) => write!(f, "{of}[{at}]"),
        }
    }
}

/// A value that is being read.
#[derive(Clone, Copy)]
pub struct ValueReader<'de, 'r> {
    value: &'de Value,
    place: ValuePlace<'r>,
    notes: &'r Notes,
}

impl<'de> ValueReader<'de, '_> {
    /// Reads a value inside of this one.
    fn read_inner<T: DeserializeSeed<'de>>(
        &self,
        value: &'de Value,
        place: ValuePlace<'_>,
        seed: T,
    ) -> Result<T::Value, Error> {
        let read = seed.deserialize(ValueReader { value, place, notes: self.notes });
        if read.is_err() {
            self.notes.record_failure(&place);
        }
        read
    }
}

impl<'de> Deserializer<'de> for ValueReader<'de, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Object(fields) => visitor.visit_map(FieldsLeft::of(fields, &self, false)),
            Value::Array(items) => {
                let mut rest = ItemsLeft { items: items.iter().enumerate(), of: &self };
                let read = visitor.visit_seq(&mut rest)?;
                match rest.items.next() {
                    None => Ok(read),
                    Some(_) => Err(Error::invalid_length(items.len(), &"fewer elements")),
                }
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    /// Treats a null field as absent, like API servers, which remove it. A null entry of a map is
    /// not absent.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.value {
            Value::Object(fields) => visitor.visit_map(FieldsLeft::of(fields, &self, true)),
            // serde would read a list as the fields in the order of their declaration.
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &"fields")),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.value.deserialize_enum(name, variants, visitor)
    }

    /// Records a field that the type does not have. A null field is ignored.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if !self.value.is_null() {
            let mut unread = self.notes.unread.borrow_mut();
            if unread.paths.len() < NAMED_MAX {
                unread.paths.push(self.place.to_string());
            } else {
                unread.more += 1;
            }
        }
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier
    }
}

/// The fields of an object that are not read yet.
pub struct FieldsLeft<'de, 'r> {
    fields: map::Iter<'de>,
    next: Option<(&'de str, &'de Value)>,
    of: &'r ValueReader<'de, 'r>,
    skips_nulls: bool,
}

impl<'de, 'r> FieldsLeft<'de, 'r> {
    fn of(
        fields: &'de Map<String, Value>,
        of: &'r ValueReader<'de, 'r>,
        skips_nulls: bool,
    ) -> Self {
        Self { fields: fields.iter(), next: None, of, skips_nulls }
    }
}

impl<'de> MapAccess<'de> for FieldsLeft<'de, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let is_there = |(_, value): &(_, &Value)| !(self.skips_nulls && value.is_null());
        let Some((name, value)) = self.fields.find(is_there) else { return Ok(None) };
        self.next = Some((name, value));
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let next = self.next.take().ok_or_else(|| Error::custom("a value without its name"));
        let (name, value) = next?;
        self.of.read_inner(value, ValuePlace::Field(&self.of.place, name), seed)
    }
}

/// The items of a list that are not read yet.
pub struct ItemsLeft<'de, 'r> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Value>>,
    of: &'r ValueReader<'de, 'r>,
}

impl<'de> SeqAccess<'de> for ItemsLeft<'de, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some((at, value)) = self.items.next() else { return Ok(None) };
        self.of.read_inner(value, ValuePlace::Item(&self.of.place, at), seed).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, Default, PartialEq)]
    #[serde(rename_all = "camelCase", default)]
    struct Outer {
        first: Option<u16>,
        inner: Vec<Inner>,
        any: Value,
    }

    #[derive(Debug, Deserialize, Default, PartialEq)]
    #[serde(rename_all = "camelCase", default)]
    struct Inner {
        name: String,
        mode: Mode,
    }

    #[derive(Debug, Deserialize, Default, PartialEq)]
    enum Mode {
        #[default]
        One,
        Two,
    }

    #[test]
    fn fields_that_nothing_reads_are_named_by_their_paths() {
        let value = json!({
            "first": 7,
            "frist": null,
            "inner": [{ "name": "a" }, { "nmae": "b", "mode": "Two", "deep": { "x": 1 } }],
            "any": { "whatever": [1] },
            "other": [],
        });
        let (read, unread) = read::<Outer>(&value).expect("it is one");
        let inner = vec![
            Inner { name: "a".into(), mode: Mode::One },
            Inner { name: String::new(), mode: Mode::Two },
        ];
        assert_eq!(read, Outer { first: Some(7), inner, any: json!({ "whatever": [1] }) });
        assert_eq!(unread.paths, ["inner[1].deep", "inner[1].nmae", "other"]);
        assert_eq!(unread.more, 0);
    }

    #[test]
    fn error_has_the_path_of_the_innermost_value_that_does_not_fit() {
        for (value, path) in [
            (json!({ "first": "x" }), "first"),
            (json!({ "first": 70000 }), "first"),
            (json!({ "inner": {} }), "inner"),
            (json!({ "inner": [{}, null] }), "inner[1]"),
            (json!({ "inner": [{ "mode": "Three" }] }), "inner[0].mode"),
            (json!("x"), ""),
        ] {
            let (found, error) = read::<Outer>(&value).expect_err("the value does not fit");
            let expected = serde_json::from_value::<Outer>(value).expect_err("nor without paths");
            assert_eq!((found.as_str(), error.to_string()), (path, expected.to_string()));
        }
    }

    #[test]
    fn list_is_not_read_as_fields_in_their_order() {
        for (value, path) in [(json!([7]), ""), (json!({ "inner": [["a", "Two"]] }), "inner[0]")] {
            let (found, error) = read::<Outer>(&value).expect_err("a list");
            assert_eq!(
                (found.as_str(), error.to_string().split(',').next()),
                (path, Some("invalid type: sequence"))
            );
        }
    }

    #[test]
    fn null_of_a_field_is_as_if_it_were_absent_and_of_an_entry_it_is_not() {
        let value =
            json!({ "first": null, "inner": [{ "name": null, "mode": null }], "any": null });
        let (found, unread) = read::<Outer>(&value).expect("it is one");
        assert_eq!(found, Outer { inner: vec![Inner::default()], ..Outer::default() });
        assert_eq!(unread, UnreadFields::default());
        let (found, _) = read::<Outer>(&json!({ "inner": null })).expect("an empty list");
        assert_eq!(found, Outer::default());
        read::<std::collections::BTreeMap<String, Inner>>(&json!({ "a": null }))
            .expect_err("an entry of a map is there");
    }

    #[test]
    fn only_the_first_of_many_unread_fields_are_named() {
        let fields = (0..40).map(|at| (format!("a{at:02}"), json!(1)));
        let (_, unread) = read::<Outer>(&Value::Object(fields.collect())).expect("it is one");
        assert_eq!((unread.paths.len(), unread.more), (NAMED_MAX, 40 - NAMED_MAX));
    }
}
