//! The form in which a hold lies in the config cluster for all replicas: a short text that says which hold it is, read often, and the
//! configuration itself, compressed, in parts that an API server takes.

use std::io::{Error, ErrorKind, Read, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::ConfigurationHold;
use super::file::{BYTES_MAX, encode, parse};

/// What the short text calls its form.
const FORM: &str = "strait shared hold 1";
/// The most bytes of a part: an API server takes 1 MiB in a Secret, and etcd 1.5 MiB of its JSON.
const PART_BYTES_MAX: usize = 700 << 10;
/// The most parts: some 100 MB of objects, which compress to a tenth.
pub const PARTS_MAX: usize = 16;

/// Which hold it is: the same in every replica that has taken it over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HoldMark {
    /// The name of the configuration.
    pub configuration: Arc<str>,
    /// Since when it is held, in milliseconds since the Unix epoch.
    pub since: u64,
    /// Whether access policies are held as well.
    pub with_access: bool,
}

impl HoldMark {
    /// That of a hold. Works out the name of the configuration, where nobody has yet.
    pub fn of(hold: &ConfigurationHold) -> Self {
        Self {
            configuration: hold.configuration.id(),
            since: hold.since_ms(),
            with_access: hold.scope.is_with_access(),
        }
    }
}

/// What all replicas are to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedHold {
    /// When it was said, in milliseconds since the Unix epoch: of two the later counts.
    pub changed: u64,
    /// Which hold it is, and in how many parts it lies; none where nothing is held.
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
    /// Which hold it is.
    pub fn mark(&self) -> Option<&HoldMark> {
        self.held.as_ref().map(|(mark, _)| mark)
    }

    /// The short text.
    pub fn to_text(&self) -> String {
        let (held, parts) = self.held.clone().unzip();
        let form = FORM.to_owned();
        let head = WrittenHead { form, changed: self.changed, held, parts: parts.unwrap_or(0) };
        serde_json::to_string(&head).expect("texts and numbers can be written")
    }

    /// What the short text says.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_text(text: &[u8]) -> Result<Self, String> {
        let head: WrittenHead = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if head.form != FORM {
            return Err(format!("its form is {:?}, and {FORM:?} is known", head.form));
        }
        if head.held.is_some() && !(1..=PARTS_MAX).contains(&head.parts) {
            return Err(format!("it has {} parts, not 1 to {PARTS_MAX}", head.parts));
        }
        Ok(Self { changed: head.changed, held: head.held.map(|mark| (mark, head.parts)) })
    }
}

/// The parts of a hold.
///
/// # Errors
/// There would be more than [`PARTS_MAX`].
pub fn pack(hold: &ConfigurationHold) -> std::io::Result<Vec<Vec<u8>>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(&encode(hold)?)?;
    let packed = packer.finish()?;
    let parts: Vec<_> = packed.chunks(PART_BYTES_MAX).map(<[u8]>::to_vec).collect();
    if parts.len() > PARTS_MAX {
        let (bytes, most) = (packed.len(), PARTS_MAX * PART_BYTES_MAX);
        let fact = format!("it has {bytes} bytes when it is compressed, more than {most}");
        return Err(Error::new(ErrorKind::FileTooLarge, fact));
    }
    Ok(parts)
}

/// The hold with that mark, of its parts: whole or not at all.
///
/// # Errors
/// What is wrong with it.
pub fn unpack(mark: &HoldMark, parts: &[Vec<u8>]) -> Result<ConfigurationHold, String> {
    let mut text = Vec::new();
    let packed = parts.concat();
    let mut unpacker = GzDecoder::new(&packed[..]).take(BYTES_MAX);
    unpacker.read_to_end(&mut text).map_err(|error| error.to_string())?;
    let hold = parse(&text)?;
    match HoldMark::of(&hold) == *mark {
        true => Ok(hold),
        false => Err("its parts are those of another hold".to_owned()),
    }
}

/// Whether the other replicas hold what this one does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldSharing {
    /// There is no config cluster through which others could hear of it.
    Alone,
    /// They do, or are about to: the config cluster says what this one holds.
    Shared(Option<HoldMark>),
    /// They don't: the config cluster can't be told what this one holds, or what it says can't be held.
    Failing(Option<HoldMark>, Arc<str>),
}

impl HoldSharing {
    /// Whether what is said here is said of that hold, or of holding nothing.
    pub fn is_about(&self, mark: Option<&HoldMark>) -> bool {
        match self {
            Self::Alone => true,
            Self::Shared(of) | Self::Failing(of, _) => of.as_ref() == mark,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::hold_of;
    use strait_model::{Collection, ConfigurationSnapshot};

    /// One whose objects are as many bytes as that, which don't compress.
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
    fn what_is_packed_is_unpacked_whole() {
        for (bytes, parts) in [(10, 1), (2 << 20, 3)] {
            let hold = hold(bytes);
            let packed = pack(&hold).expect("packed");
            assert_eq!(packed.len(), parts);
            assert!(packed.iter().all(|part| part.len() <= PART_BYTES_MAX));
            assert_eq!(unpack(&HoldMark::of(&hold), &packed).as_ref(), Ok(&hold));
        }
        let error = pack(&hold(20 << 20)).expect_err("larger than all parts").to_string();
        assert!(error.contains("when it is compressed"), "{error}");
    }

    #[test]
    fn parts_of_two_holds_are_taken_for_neither() {
        let (one, other) = (hold(2 << 20), hold((2 << 20) + 1));
        let [of_one, of_other] = [&one, &other].map(|hold| pack(hold).expect("packed"));
        let mark = HoldMark::of(&one);
        let mixed = [&of_one[..1], &of_other[1..]].concat();
        assert!(unpack(&mark, &mixed).is_err());
        assert!(unpack(&mark, &of_one[..2]).is_err(), "one is missing");
        assert_eq!(
            unpack(&mark, &of_other).expect_err("of another"),
            "its parts are those of another hold"
        );
    }

    #[test]
    fn the_short_text_is_read_as_it_was_written_or_not_at_all() {
        let mark = HoldMark::of(&hold(1));
        for shared in [
            SharedHold { changed: 7, held: None },
            SharedHold { changed: u64::MAX, held: Some((mark, PARTS_MAX)) },
        ] {
            assert_eq!(SharedHold::of_text(shared.to_text().as_bytes()), Ok(shared));
        }
        let text = SharedHold { changed: 7, held: Some((HoldMark::of(&hold(1)), 1)) }.to_text();
        for (damaged, expected) in [
            (String::new(), "EOF"),
            (text.replace(FORM, "strait shared hold 2"), "is known"),
            (text.replace("\"parts\":1", "\"parts\":0"), "it has 0 parts"),
            (text.replace("\"parts\":1", "\"parts\":17"), "it has 17 parts"),
            (text.replacen('{', "{\"more\":1,", 1), "unknown field"),
        ] {
            let fact = SharedHold::of_text(damaged.as_bytes()).expect_err("damaged");
            assert!(fact.contains(expected), "{fact}");
        }
    }
}
