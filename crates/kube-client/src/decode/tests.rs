//! Tests of equal content in both encodings, and of invalid bytes.

use serde::Deserialize;

use super::super::ApiError;
use super::super::object::{AsIs, ObjectMetadata, OwnedObject};
use super::*;

/// A test kind, decoded completely.
#[derive(Debug, Deserialize)]
struct SizedObject {
    metadata: ObjectMetadata,
    #[serde(default)]
    size: Option<u16>,
}

impl OwnedObject for SizedObject {
    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

/// The result of a page.
#[derive(Debug)]
struct Page {
    objects: Vec<SizedObject>,
    invalid: Vec<InvalidField>,
    end: ListEnd,
}

/// Decodes a page that arrives in pieces of this many bytes.
fn page_in(encoding: Encoding, bytes: &[u8], piece: usize) -> Result<Page, String> {
    let mut list = ListDecoder::new(encoding, 8 << 20);
    let (mut objects, mut invalid) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(piece) {
        list.push(piece);
        while let Some(bytes) = list.next().map_err(|error| format!("{error:?}"))? {
            match object(&AsIs::<SizedObject>::new(), encoding, &bytes) {
                Ok(object) => objects.push(object),
                Err(error) => invalid.push(error),
            }
        }
    }
    Ok(Page { objects, invalid, end: list.end()? })
}

fn page(json: &str) -> Result<Page, String> {
    let whole = page_in(Encoding::Json, json.as_bytes(), usize::MAX);
    for piece in [1, 7] {
        let pieces = page_in(Encoding::Json, json.as_bytes(), piece);
        assert_eq!(format!("{pieces:?}"), format!("{whole:?}"), "in pieces of {piece}");
    }
    whole
}

#[test]
fn list_of_another_kind_is_refused() {
    let of_kind = |kind: &str| {
        let text =
            format!(r#"{{"kind":"{kind}","metadata":{{"resourceVersion":"1"}},"items":[]}}"#);
        page(&text).expect("a list").end
    };
    for (kind, plural) in [
        ("EndpointSliceList", "endpointslices"),
        ("ServiceEntryList", "serviceentries"),
        ("IngressList", "ingresses"),
        ("List", "pods"),
        ("", "pods"),
    ] {
        assert_eq!(of_kind(kind).check_kind(plural), Ok(()), "{kind}");
    }
    for kind in ["PodList", "Table", "Status"] {
        let error = of_kind(kind).check_kind("endpointslices").expect_err(kind);
        assert_eq!(error, format!("it is a {kind}, not a list of endpointslices"));
    }
}

fn line(json: &str) -> Result<WatchLine<SizedObject>, String> {
    super::line(&AsIs::<SizedObject>::new(), Encoding::Json, json.as_bytes())
}

#[test]
fn invalid_object_does_not_affect_others() {
    let page = page(
        r#"{"metadata":{"resourceVersion":"7","continue":"more"},"items":[
            {"metadata":{"name":"a"},"size":1},
            {"metadata":{"name":"b"},"size":65536},
            {"metadata":{"name":"c\u0000"}}, {"metadata":null}, 5, null,
            {"metadata":{"name":"d","labels":null,"annotations":null,"namespace":null}}]}"#,
    )
    .expect("a page");
    let names: Vec<_> = page.objects.iter().map(|object| &*object.metadata.name).collect();
    assert_eq!(names, ["a", "d"]);
    assert_eq!(page.objects.first().and_then(|object| object.size), Some(1));
    assert_eq!(page.invalid.len(), 5);
    let named = page.invalid.first().and_then(|invalid| invalid.key.as_ref());
    assert_eq!(named.map(ToString::to_string).as_deref(), Some("b"));
    assert_eq!((&*page.end.version, page.end.next.as_deref()), ("7", Some("more")));
}

#[test]
fn invalid_list_is_not_an_empty_list() {
    for bad in ["", "{}", "[]", "<html>", r#"{"metadata":{"resourceVersion":"1"}}"#] {
        assert!(page(bad).is_err(), "{bad}");
    }
    let empty = page(r#"{"metadata":{"resourceVersion":"1"},"items":null}"#);
    assert!(empty.expect("an empty list").objects.is_empty());
}

#[test]
fn unused_annotations_are_not_stored() {
    let page = page(
        r#"{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a","annotations":{
            "kubectl.kubernetes.io/last-applied-configuration":"{}","x":null,
            "networking.istio.io/exportTo":"*","strait.dev/network":"n"}}}]}"#,
    )
    .expect("a page");
    let annotations: Vec<_> = page
        .objects
        .iter()
        .flat_map(|object| object.metadata.annotations.keys().map(|key| &**key))
        .collect();
    assert_eq!(annotations, ["networking.istio.io/exportTo", "strait.dev/network"]);
}

#[test]
fn events_of_a_watch_are_distinguished() {
    let object = r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"3"}}"#;
    let decode =
        |kind: &str, object: &str| line(&format!(r#"{{"type":"{kind}","object":{object}}}"#));
    assert!(
        matches!(decode("ADDED", object), Ok(WatchLine::Applied { version, .. }) if version == "3")
    );
    assert!(
        matches!(decode("DELETED", object), Ok(WatchLine::Deleted { key, .. }) if key.to_string() == "n/a")
    );
    let invalid = r#"{"metadata":{"name":"a","resourceVersion":"4"},"size":"x"}"#;
    assert!(
        matches!(decode("MODIFIED", invalid), Ok(WatchLine::Invalid { version, .. }) if version == "4")
    );
    let end = r#"{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}"#;
    assert!(matches!(
        decode("BOOKMARK", end),
        Ok(WatchLine::Bookmark { initial_events_end: true, version }) if version == "9"
    ));
    let gone = r#"{"code":410,"reason":"Expired","message":"too old"}"#;
    assert!(matches!(decode("ERROR", gone), Ok(WatchLine::Error(ApiError::Gone(_)))));
    assert!(matches!(decode("ERROR", "{}"), Ok(WatchLine::Error(ApiError::Server(_)))));
    for bad in ["", "{", "{}", "null", r#"{"type":"ADDED"}"#, r#"{"type":"X","object":{}}"#] {
        assert!(line(bad).is_err(), "{bad}");
    }
}

#[test]
fn deep_nesting_is_skipped_safely() {
    let depth = 1_000_000;
    let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let ignored = format!(r#"{{"metadata":{{"name":"a"}},"unknown":{deep}}}"#);
    let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{ignored}]}}"#);
    assert_eq!(page(&list).expect("a page").objects.len(), 1, "skipped without recursion");
    let deep_labels = format!(r#"{{"metadata":{{"name":"a","labels":{deep}}}}}"#);
    let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{deep_labels}]}}"#);
    assert_eq!(page(&list).expect("a page").invalid.len(), 1, "affects no other object");
}

#[test]
fn items_are_found_at_any_position() {
    let names = |page: Page| {
        page.objects.iter().map(|object| object.metadata.name.to_string()).collect::<Vec<_>>()
    };
    let metadata = r#""metadata":{"resourceVersion":"7","x":{"items":[1]}}"#;
    let items =
        r#""items" : [ {"metadata":{"name":"a\u002d}]"}},{"metadata":{"name":"b"}, "x":"\\"} ]"#;
    for list in [format!("{{{metadata},{items}}}"), format!("{{{items}, {metadata}, \"y\":[]}}")] {
        let page = page(&list).expect("a page");
        assert_eq!(page.invalid.len(), 1, "an invalid name");
        assert_eq!(names(page), ["b"], "{list}");
    }
    let escaped = format!(r#"{{{metadata},"it\u0065ms":[{{"metadata":{{"name":"a"}}}}]}}"#);
    assert!(page(&escaped).is_err(), "never an empty list");
    let text = format!(r#"{{"kind":"items",{metadata},"items":[]}}"#);
    assert!(page(&text).expect("a page").objects.is_empty());
    for cut in
        [r#"{"items":["#, r#"{"items":[{}"#, r#"{"items":[{},"#, r#"{"metadata":{},"items":[]"#]
    {
        assert!(page(cut).is_err(), "{cut}");
    }
}

#[test]
fn sizes_of_objects_and_envelope_are_limited() {
    let object = format!(r#"{{"items":[{{"x":"{}"}}]}}"#, "y".repeat(9 << 20));
    assert_eq!(page_in(Encoding::Json, object.as_bytes(), 1 << 16).unwrap_err(), "TooLong");
    let around = format!(r#"{{"x":"{}""#, "y".repeat(1 << 20));
    assert!(page_in(Encoding::Json, around.as_bytes(), 1 << 16).is_err());
    let wrapped = |field: &[u8]| [b"k8s\0\x12\xff\xff\xff\x7f", field].concat();
    let object = wrapped(b"\x12\xff\xff\xff\x7f");
    assert_eq!(page_in(Encoding::Protobuf, &object, 1).unwrap_err(), "TooLong");
    let around = wrapped(b"\x0a\xff\xff\xff\x7f");
    assert_eq!(page_in(Encoding::Protobuf, &around, 1).unwrap_err(), "TooLong");
}
