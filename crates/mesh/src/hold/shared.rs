//! The form in which replicas share a hold through the config cluster: a short text that identifies
//! the hold and is read often, and the compressed configuration, in parts that are small enough for
//! an API server.

use std::io::{Error, ErrorKind, Read, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::ConfigurationHold;
use super::file::{BYTES_MAX, encode, parse};

/// The identifier of the text's format.
const FORM: &str = "strait shared hold 1";
/// The maximum size of a part in bytes: an API server accepts 1 MiB in a Secret, and etcd 1.5 MiB
/// of its JSON.
const PART_BYTES_MAX: usize = 700 << 10;
/// The maximum number of parts: about 100 MB of objects, which compress to a tenth.
pub const PARTS_MAX: usize = 16;

/// Identifies a hold; equal in every replica that has adopted it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HoldMark {
    /// The name of the configuration.
    pub configuration: Arc<str>,
    /// Start of the hold, in milliseconds since the Unix epoch.
    pub since: u64,
    /// Whether the hold includes access policies.
    pub with_access: bool,
}

impl HoldMark {
    /// Returns the mark of a hold. Computes the name of the configuration if it is not known yet.
    pub fn of(hold: &ConfigurationHold) -> Self {
        Self {
            configuration: hold.configuration.id(),
            since: hold.since_ms(),
            with_access: hold.scope.is_with_access(),
        }
    }
}

/// The hold that all replicas must adopt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedHold {
    /// When it was written, in milliseconds since the Unix epoch; the later of two values wins.
    pub changed: u64,
    /// The hold and its number of parts, or `None` if there is no hold.
    pub held: Option<(HoldMark, usize)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenHead {
    form: String,
    changed: u64,
    held: Option<HoldMark>,
    #[serde(default)]
    parts: usize,
}

impl SharedHold {
    /// Returns the mark of the hold.
    pub fn mark(&self) -> Option<&HoldMark> {
        self.held.as_ref().map(|(mark, _)| mark)
    }

    /// Encodes it as the short text.
    pub fn to_text(&self) -> String {
        let (hold, parts) = self.held.clone().unzip();
        let form = FORM.to_owned();
        let written =
            WrittenHead { form, changed: self.changed, held: hold, parts: parts.unwrap_or(0) };
        serde_json::to_string(&written).expect("texts and numbers can be written")
    }

    /// Parses the short text.
    ///
    /// # Errors
    /// Returns a description of the damage.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let written: WrittenHead =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if written.form != FORM {
            return Err(format!("unsupported format {:?}; expected {FORM:?}", written.form));
        }
        if written.held.is_some() && !(1..=PARTS_MAX).contains(&written.parts) {
            return Err(format!("it has {} parts, not 1 to {PARTS_MAX}", written.parts));
        }
        Ok(Self { changed: written.changed, held: written.held.map(|mark| (mark, written.parts)) })
    }
}

/// Encodes and compresses a hold and splits it into parts.
///
/// # Errors
/// If there would be more than [`PARTS_MAX`] parts.
pub fn pack(hold: &ConfigurationHold) -> std::io::Result<Vec<Vec<u8>>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(&encode(hold)?)?;
    let packed = packer.finish()?;
    let parts: Vec<_> = packed.chunks(PART_BYTES_MAX).map(<[u8]>::to_vec).collect();
    if parts.len() > PARTS_MAX {
        let (bytes, most) = (packed.len(), PARTS_MAX * PART_BYTES_MAX);
        let fact = format!("its compressed size is {bytes} bytes, more than {most}");
        return Err(Error::new(ErrorKind::FileTooLarge, fact));
    }
    Ok(parts)
}

/// Decodes the hold with this mark from its parts, completely or not at all.
///
/// # Errors
/// Returns a description of the damage.
pub fn unpack(mark: &HoldMark, parts: &[Vec<u8>]) -> Result<ConfigurationHold, String> {
    let mut text = Vec::new();
    let packed = parts.concat();
    let mut unpacker = GzDecoder::new(&packed[..]).take(BYTES_MAX);
    unpacker.read_to_end(&mut text).map_err(|error| error.to_string())?;
    let hold = parse(&text)?;
    match HoldMark::of(&hold) == *mark {
        true => Ok(hold),
        false => Err("its parts belong to another hold".to_owned()),
    }
}

/// Whether the other replicas hold the same configuration as this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldSharing {
    /// There is no config cluster, so the hold cannot be shared.
    Alone,
    /// The config cluster contains this replica's hold, so the other replicas adopt it.
    Shared(Option<HoldMark>),
    /// The hold is not shared: it cannot be written to the config cluster, or the shared hold
    /// cannot be adopted.
    Failing(Option<HoldMark>, Arc<str>),
}

impl HoldSharing {
    /// Returns whether this status refers to the hold with this mark, or to no hold if `mark` is
    /// `None`.
    pub fn is_about(&self, mark: Option<&HoldMark>) -> bool {
        match self {
            Self::Alone => true,
            Self::Shared(shared) | Self::Failing(shared, _) => shared.as_ref() == mark,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::hold_of;
    use strait_model::{Collection, ConfigurationSnapshot};

    /// Returns a hold whose object has this many bytes and does not compress.
    fn hold(bytes: usize) -> ConfigurationHold {
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(b' ' + (state % 90) as u8)
        });
        let object = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": { "namespace": "shop", "name": "one" },
            "spec": noise.take(bytes).collect::<String>(),
        });
        let traffic: Collection = [Arc::new(object)].into_iter().collect();
        let configuration =
            ConfigurationSnapshot::new(traffic, Collection::default(), Some("{}".into()), None);
        hold_of(configuration, 1_700_000_000_123)
    }

    #[test]
    fn packed_hold_is_unpacked_completely() {
        for (bytes, parts) in [(10, 1), (2 << 20, 3)] {
            let hold = hold(bytes);
            let packed = pack(&hold).expect("packed");
            assert_eq!(packed.len(), parts);
            assert!(packed.iter().all(|part| part.len() <= PART_BYTES_MAX));
            assert_eq!(unpack(&HoldMark::of(&hold), &packed).as_ref(), Ok(&hold));
        }
        let error = pack(&hold(20 << 20)).expect_err("larger than all parts").to_string();
        assert!(error.contains("its compressed size is"), "{error}");
    }

    #[test]
    fn mixed_parts_of_two_holds_are_rejected() {
        let (one, other) = (hold(2 << 20), hold((2 << 20) + 1));
        let [first_parts, second_parts] = [&one, &other].map(|hold| pack(hold).expect("packed"));
        let mark = HoldMark::of(&one);
        let mixed = [&first_parts[..1], &second_parts[1..]].concat();
        assert!(unpack(&mark, &mixed).is_err());
        assert!(unpack(&mark, &first_parts[..2]).is_err(), "one is missing");
        assert_eq!(
            unpack(&mark, &second_parts).expect_err("of another"),
            "its parts belong to another hold"
        );
    }

    #[test]
    fn short_text_is_parsed_exactly_or_rejected() {
        let mark = HoldMark::of(&hold(1));
        for shared in [
            SharedHold { changed: 7, held: None },
            SharedHold { changed: u64::MAX, held: Some((mark, PARTS_MAX)) },
        ] {
            assert_eq!(SharedHold::parse(shared.to_text().as_bytes()), Ok(shared));
        }
        let text = SharedHold { changed: 7, held: Some((HoldMark::of(&hold(1)), 1)) }.to_text();
        for (damaged, expected) in [
            (String::new(), "EOF"),
            (text.replace(FORM, "strait shared hold 2"), "unsupported format"),
            (text.replace("\"parts\":1", "\"parts\":0"), "it has 0 parts"),
            (text.replace("\"parts\":1", "\"parts\":17"), "it has 17 parts"),
            (text.replacen('{', "{\"more\":1,", 1), "unknown field"),
        ] {
            let fact = SharedHold::parse(damaged.as_bytes()).expect_err("damaged");
            assert!(fact.contains(expected), "{fact}");
        }
    }
}
