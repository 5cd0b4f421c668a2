//! Fuzz targets for access policies: see [`strait_base::testing::fuzz`].

use std::sync::Arc;

use serde_json::Value;

use super::{
    AccessIndex, AccessPolicies, AccessRequest, AccessSettings, AccessSubject, AccessVerdict, Atom,
    PeerMode, PolicyErrors, PolicyState, RuleMatcher, TextPattern, TrustBundle, WireForm, decide,
    enforced,
};
use strait_model::{Collection, Labels, Namespace};

const FORMS: [WireForm; 3] = [WireForm::Http, WireForm::Tcp, WireForm::Grpc];

/// Reads one object or a list of objects. Checks that strict error handling never allows a request
/// that narrow error handling denies, and that each regular expression for proxies matches the same
/// texts as the rule.
pub(crate) fn policies(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return false };
    let objects: Vec<Value> = match value {
        Value::Array(objects) => objects,
        object => vec![object],
    };
    let objects: Collection = objects.into_iter().map(Arc::new).collect();
    let [narrow, strict] = [PolicyErrors::Narrow, PolicyErrors::Strict].map(|errors| {
        let settings = AccessSettings { root: "istio-system".into(), errors };
        let mut index = AccessIndex::new(settings.clone());
        index.apply(&settings, &objects);
        index.policies
    });
    let labels: Labels = [("app".into(), "web".into())].into_iter().collect();
    let namespace = Namespace::from("shop");
    let subject = AccessSubject { namespace: &namespace, labels: &labels, is_known: true };
    let [lenient, closed] = [&narrow, &strict].map(|policies| policies.modes(subject));
    for port in [80, 8080] {
        let [lenient, closed] = [&lenient, &closed].map(|modes| modes.of_port(port).mode);
        assert!(
            closed == PeerMode::Strict || closed == lenient,
            "{lenient:?}, strictly {closed:?}"
        );
    }
    for form in FORMS {
        for request in requests() {
            let [lenient, closed] =
                [&narrow, &strict].map(|one| verdict(one, subject, form, &request));
            let widened = lenient == AccessVerdict::Deny && closed == AccessVerdict::Allow;
            assert!(!widened, "strict mode allows {request:?}");
        }
        let rules = enforced(&narrow.of(subject), form, &trust(), &Default::default());
        rules.rules().for_each(check_expressions);
    }
    narrow.reports().any(|(_, report)| report.state == PolicyState::InForce)
}

fn trust() -> TrustBundle {
    TrustBundle::new(["mesh.example", "old.example"].into_iter())
}

fn verdict(
    policies: &AccessPolicies,
    subject: AccessSubject<'_>,
    form: WireForm,
    request: &AccessRequest,
) -> AccessVerdict {
    let rules = enforced(&policies.of(subject), form, &trust(), &Default::default());
    decide(&rules, request).verdict
}

fn requests() -> impl Iterator<Item = AccessRequest> {
    let paths = ["/", "/admin", "/a/b/c"];
    let identities = [None, Some("spiffe://mesh.example/ns/shop/sa/a")];
    identities.into_iter().flat_map(move |identity| {
        paths.map(|path| AccessRequest {
            identity: identity.map(str::to_owned),
            path: Some(path.to_owned()),
            port: Some(8080),
            headers: [(":authority", "a.example"), (":method", "GET"), ("x-role", "admin, user")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..AccessRequest::default()
        })
    })
}

fn check_expressions(rule: &RuleMatcher) {
    let clauses = rule.sources.iter().chain(&rule.operations).flatten();
    for atom in clauses.flat_map(|clause| clause.any.iter().flatten()) {
        match atom {
            Atom::Identity(pattern)
            | Atom::Header(_, pattern)
            | Atom::HeaderNowhere(_, pattern)
            | Atom::Path(pattern)
            | Atom::ServerName(pattern)
            | Atom::Metadata(_, _, pattern) => check_expression(pattern),
            Atom::PeerAddress(_)
            | Atom::ClientAddress(_)
            | Atom::HeaderPresent(_)
            | Atom::PathTemplate(_)
            | Atom::Port(_)
            | Atom::DestinationAddress(_) => {}
        }
    }
}

/// Compares a pattern with its regular expression, for texts similar to the pattern.
fn check_expression(pattern: &TextPattern<'_>) {
    let text = format!("^(?:{})$", pattern.regex());
    // `\<` and `\>` have a meaning in the `regex` crate, but not in RE2.
    if !text.is_ascii() || text.contains(['<', '>']) {
        return;
    }
    let expression = regex::Regex::new(&text).expect("what proxies are sent is an expression");
    let like = pattern.parts.iter().map(|part| match part {
        super::TextPart::Text(text) => text.to_string(),
        super::TextPart::HostEnd | super::TextPart::HostRest => ".:80".to_owned(),
        super::TextPart::HostBefore => "u@".to_owned(),
        super::TextPart::Dot => ".".to_owned(),
        super::TextPart::ListBefore => "x, ".to_owned(),
        super::TextPart::ListAfter => " ,y".to_owned(),
        super::TextPart::OtherAfter(not) | super::TextPart::OtherBefore(not) => not.clone(),
        super::TextPart::Any | super::TextPart::Some | super::TextPart::Segment => "x".to_owned(),
    });
    let like: String = like.collect();
    let mut texts = vec![like.clone(), like.to_uppercase(), format!("{like}x"), format!("x{like}")];
    texts.extend([like.chars().skip(1).collect(), like.replace(['.', 'x'], ""), String::new()]);
    // Proxies compare only printable ASCII here, and names have no case folding for other letters.
    let is_plain =
        |text: &&String| text.bytes().all(|byte| (b' '..127).contains(&byte)) && text.len() < 200;
    for text in texts.iter().filter(is_plain) {
        assert_eq!(pattern.matches(text), expression.is_match(text), "{text:?} by {expression}");
    }
}
