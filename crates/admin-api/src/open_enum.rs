//! Enumerations whose values may grow: a reader accepts values that it does not know.

/// Declares an enumeration that is text in JSON. An unknown text is the value `Other`.
macro_rules! open_enum {
    (
        $(#[doc = $about:literal])*
        $name:ident { $($(#[doc = $meaning:literal])* $value:ident = $text:literal,)+ }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[doc = $meaning])* $value,)+
            /// A value that this release does not know, as the server sent it.
            Other(String),
        }

        impl $name {
            /// Returns the value as in JSON.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$value => $text,)+
                    Self::Other(text) => text,
                }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $($text => Self::$value,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        /// The value of a field that the server did not send.
        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                Ok(Self::from(&*text))
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            /// Known values, and any text: a newer server may send other values.
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "description": concat!($($about),*).trim(),
                    "anyOf": [
                        $({ "const": $text, "description": concat!($($meaning),*).trim() },)+
                        { "type": "string" },
                    ],
                })
            }
        }
    };
}
