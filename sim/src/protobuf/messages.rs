//! The table of messages, parsed once from `messages.txt`, which documents its format.

use std::collections::BTreeMap;
use std::sync::LazyLock;

static TABLE: LazyLock<Table> = LazyLock::new(|| Table::parse(include_str!("messages.txt")));

#[derive(Debug)]
struct Table {
    messages: Vec<Message>,
    by_name: BTreeMap<&'static str, usize>,
}

/// A message type.
#[derive(Debug)]
pub(crate) struct Message {
    pub(super) fields: Vec<Field>,
}

/// A field of a message.
#[derive(Debug)]
pub(super) struct Field {
    /// The name in JSON; `~` if the JSON object contains the fields of this field directly.
    pub(super) name: &'static str,
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) count: Count,
    /// Whether the field is written even if it is empty.
    pub(super) always: bool,
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    String,
    Int,
    Bool,
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    FieldsV1,
    /// A message, by its index in the table.
    Message(usize),
}

/// How often a field may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    One,
    Many,
    Map,
}

impl Message {
    /// Returns the message of a built-in kind, if the table contains it.
    pub(crate) fn named(api_version: &str, kind: &str) -> Option<&'static Message> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        // A custom kind may have the name of a built-in one, but has no protobuf form.
        let built_in = !group.contains('.') || group.ends_with(".k8s.io");
        let built_in = built_in && group != "gateway.networking.k8s.io";
        built_in.then(|| Message::called(kind)).flatten()
    }

    /// Returns the message with this name in the table.
    pub(crate) fn called(name: &str) -> Option<&'static Message> {
        TABLE.by_name.get(name).map(|index| &TABLE.messages[*index])
    }

    pub(super) fn at(index: usize) -> &'static Message {
        &TABLE.messages[index]
    }
}

impl Field {
    pub(super) fn is_inline(&self) -> bool {
        self.name == "~"
    }
}

impl Table {
    fn parse(text: &'static str) -> Table {
        let lines = || text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let names = lines().filter(|line| !line.starts_with(' '));
        let by_name: BTreeMap<_, _> = names.enumerate().map(|(i, name)| (name, i)).collect();
        let mut messages: Vec<Message> = Vec::new();
        for line in lines() {
            match (line.strip_prefix(' '), messages.last_mut()) {
                (Some(line), Some(message)) => {
                    let fields = line.split_whitespace().map(|field| Field::parse(field, &by_name));
                    message.fields.extend(fields);
                }
                _ => messages.push(Message { fields: Vec::new() }),
            }
        }
        Table { messages, by_name }
    }
}

impl Field {
    fn parse(text: &'static str, by_name: &BTreeMap<&str, usize>) -> Field {
        let parsed = || {
            let (name, rest) = text.split_once('=')?;
            let (number, kind) = rest.split_once(':')?;
            let always = kind.ends_with('!');
            let kind = kind.trim_end_matches('!');
            let count = match kind.as_bytes().first()? {
                b'[' => Count::Many,
                b'{' => Count::Map,
                _ => Count::One,
            };
            let kind = match kind.trim_matches(['[', ']', '{', '}']) {
                "string" => Kind::String,
                "int32" | "int64" => Kind::Int,
                "bool" => Kind::Bool,
                "bytes" => Kind::Bytes,
                "Time" => Kind::Time,
                "MicroTime" => Kind::MicroTime,
                "Quantity" => Kind::Quantity,
                "IntOrString" => Kind::IntOrString,
                "FieldsV1" => Kind::FieldsV1,
                message => Kind::Message(*by_name.get(message)?),
            };
            Some(Field { name, number: number.parse().ok()?, kind, count, always })
        };
        parsed().expect("the lines of messages.txt are as its head says, and every test reads them")
    }
}
