//! Kubeconfigs as data: the inline credentials of one context.
//!
//! The bytes come from a Secret, so from any user with permission to write Secrets. They become an
//! [`Access`], a type that cannot express running a program, reading a file, skipping verification
//! or impersonation; a text that requests any of these becomes a [`KubeconfigRefusal`]. Fields are
//! allowed by name. Opens no file, resolves no name, connects to nothing.

mod refusal;
mod server;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Map, Value};
use x509_parser::x509::X509Version;

use self::server::{ServerUrl, check_server};

pub use self::refusal::KubeconfigRefusal;
use strait_base::codes::{self, Code};
use strait_kube_client::{
    Access, ApiCredential, CERTIFICATE_VERSION_1, CaBundle, Loopback, Redacted, private_key,
};
use strait_model::ClusterId;

/// Maximum size of a kubeconfig in bytes, equal to the limit of a Secret. Real ones have 2 to 20
/// KiB, or 300 KiB with the CA bundle of a whole system; there is room for a bundle of 512 KiB.
/// Checked first.
pub const BYTES_MAX: usize = 1024 * 1024;
/// Maximum nesting depth. The fields that are read are at depth 4; the rest is room for extensions.
const DEPTH_MAX: usize = 16;
/// Maximum number of clusters, of users and of contexts.
const ENTRIES_MAX: usize = 64;
/// Maximum number of scalars, lists and maps. It allows [`ENTRIES_MAX`] full entries of each kind,
/// and is low enough that a slow build on a slow machine refuses a larger file within 50 ms.
const NODES_MAX: usize = 2_500;

/// Values that replace the values of the kubeconfig before any check, each with the name of its
/// setting.
#[derive(Debug, Clone, Default)]
pub struct ServerOverride<'a> {
    /// The URL of the API server.
    pub server: Option<(&'a str, &'a str)>,
    /// The name that its certificate must be valid for.
    pub tls_server_name: Option<(&'a str, &'a str)>,
}

/// The URL of a proxy in a kubeconfig. It must be that of a proxy in the operator file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    /// The text of the URL.
    pub url: String,
    /// Its field.
    pub field: String,
}

/// Reads the context named `context`, else that of `current-context`, else the only one.
pub fn parse(
    bytes: &[u8],
    context: Option<&str>,
    loopback: Loopback,
) -> Result<Access, KubeconfigRefusal> {
    match parse_with(bytes, context, loopback, &ServerOverride::default())? {
        (access, None) => Ok(access),
        (_, Some(proxy)) => Err(uses_proxy(proxy.field)),
    }
}

fn uses_proxy(field: String) -> KubeconfigRefusal {
    KubeconfigRefusal::new(&codes::USES_PROXY, field, "sends the connection through a proxy")
}

/// Reads a context like [`parse`], with other values for its server. The access has no proxy yet.
pub fn parse_with(
    bytes: &[u8],
    context: Option<&str>,
    loopback: Loopback,
    other: &ServerOverride<'_>,
) -> Result<(Access, Option<ProxyUrl>), KubeconfigRefusal> {
    let text = decode_text(bytes)?;
    let tree = parse_tree(text)?;
    let file = KubeconfigFile::read(&tree)?;
    let (cluster, user) = file.choose(context)?;
    let others = file.clusters.iter().map(|other| &other.entry);
    let mut others = others.filter(|other| !std::ptr::eq(*other, cluster));
    if let Some(other) = others.find(|other| other.proxy_url.is_some()) {
        return Err(uses_proxy(other.field("proxy-url")));
    }
    let server = match other.server {
        Some((field, url)) => server_uri(url, loopback, field)?,
        None => cluster.server(loopback)?,
    };
    let proxy_url = cluster.proxy_url.map(|url| {
        let field = cluster.field("proxy-url");
        ProxyUrl { url: url.to_owned(), field }
    });
    let access = Access {
        server,
        ca_pem: cluster.authority()?,
        tls_server_name: match other.tls_server_name {
            Some((field, name)) => Some(server_name(name, field)?),
            None => cluster.tls_server_name()?,
        },
        credential: match user {
            Some(user) => user.credential()?,
            None => ApiCredential::None,
        },
        loopback,
        proxy: None,
    };
    Ok((access, proxy_url))
}

/// Writes a kubeconfig that [`parse`] and every other client parse to `access`.
pub fn write(cluster: &ClusterId, access: &Access) -> String {
    // A JSON string is also a YAML string, whatever it contains.
    let quoted = |text: &str| Value::from(text).to_string();
    let base64 = |bytes: &[u8]| STANDARD.encode(bytes);
    let name = quoted(cluster.as_str());
    let mut out = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: {name}\n  cluster:\n    server: {}\n",
        quoted(access.server.to_string().trim_end_matches('/'))
    );
    if let Some(ca) = &access.ca_pem {
        out += &format!("    certificate-authority-data: {}\n", base64(ca));
    }
    if let Some(server_name) = &access.tls_server_name {
        out += &format!("    tls-server-name: {}\n", quoted(server_name));
    }
    out += &format!("users:\n- name: {name}\n");
    let certificate = |certificate: &[u8], key: &Redacted<Vec<u8>>| {
        format!(
            "    client-certificate-data: {}\n    client-key-data: {}\n",
            base64(certificate),
            base64(key.reveal())
        )
    };
    let token = |token: &Redacted<String>| format!("    token: {}\n", quoted(token.reveal()));
    out += &match &access.credential {
        // A relayed member has no kubeconfig, and the token of an identity is in memory only.
        ApiCredential::None | ApiCredential::Relay | ApiCredential::Issued(_) => {
            "  user: {}\n".to_owned()
        }
        ApiCredential::Token(t) => format!("  user:\n{}", token(t)),
        ApiCredential::Basic { username, password } => format!(
            "  user:\n    username: {}\n    password: {}\n",
            quoted(username),
            quoted(password.reveal())
        ),
        ApiCredential::Certificate { certificate_pem, key_pem } => {
            format!("  user:\n{}", certificate(certificate_pem, key_pem))
        }
        ApiCredential::CertificateAndToken { certificate_pem, key_pem, token: t } => {
            format!("  user:\n{}{}", certificate(certificate_pem, key_pem), token(t))
        }
    };
    out += &format!(
        "contexts:\n- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\ncurrent-context: {name}\n"
    );
    out
}

/// Returns the text, after all checks that don't need to parse it.
fn decode_text(bytes: &[u8]) -> Result<&str, KubeconfigRefusal> {
    if bytes.len() > BYTES_MAX {
        let fact =
            format!("the kubeconfig has {} bytes, at most {BYTES_MAX} are read", bytes.len());
        return Err(KubeconfigRefusal::new(&codes::KUBECONFIG_TOO_LARGE, "", fact));
    }
    let unreadable = |fact| KubeconfigRefusal::new(&codes::KUBECONFIG_UNREADABLE, "", fact);
    let text = std::str::from_utf8(bytes).map_err(|_| unreadable("the kubeconfig is not UTF-8"))?;
    // Editors on Windows write a byte order mark, which has no meaning in UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(unreadable("the kubeconfig is empty"));
    }
    let mut characters = text.chars().peekable();
    let mut line = 1;
    while let Some(character) = characters.next() {
        let fact = match character {
            '\n' => {
                line += 1;
                continue;
            }
            '\t' => continue,
            '\r' if characters.peek() == Some(&'\n') => continue,
            '\r' => "a carriage return without a line feed".to_owned(),
            // Invisible characters, and line breaks that only some parsers recognize.
            '\u{feff}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                format!("the character {}", character.escape_unicode())
            }
            other if other.is_control() => {
                format!("the control character {}", other.escape_unicode())
            }
            _ => continue,
        };
        let fact = format!("line {line} contains {fact}");
        return Err(KubeconfigRefusal::new(&codes::YAML_TRICK, "", fact));
    }
    Ok(text)
}

/// Parses the text into plain maps, lists and scalars. JSON is parsed as YAML.
fn parse_tree(text: &str) -> Result<Value, KubeconfigRefusal> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_events: 3 * NODES_MAX,
            max_documents: 1,
            max_aliases: 0,
            max_anchors: 0,
            max_merge_keys: 0,
        },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
        reject_unsupported_tags: true,
        strict_booleans: true,
        emit_comments: false,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| yaml_refusal(&error))
}

/// Converts a parser error to our wording: the parser's text may quote the file, which contains
/// credentials.
fn yaml_refusal(error: &serde_saphyr::Error) -> KubeconfigRefusal {
    use serde_saphyr::Error as E;
    use serde_saphyr::budget::BudgetBreach as B;

    let at = error.location().map(|at| format!("line {}", at.line())).unwrap_or_default();
    let trick = |fact: &str| KubeconfigRefusal::new(&codes::YAML_TRICK, at.clone(), fact);
    let large =
        |fact: String| KubeconfigRefusal::new(&codes::KUBECONFIG_TOO_LARGE, at.clone(), fact);
    match error.without_snippet() {
        E::Budget { breach, .. } => match breach {
            B::Aliases { .. } => trick("contains an alias"),
            B::Anchors { .. } => trick("contains an anchor"),
            B::MergeKeys { .. } => trick("contains a merge key"),
            B::Documents { .. } => trick("begins another document"),
            B::Depth { .. } => large(format!("is nested more than {DEPTH_MAX} deep")),
            _ => large(format!("exceeds the limit of {NODES_MAX} values")),
        },
        E::UnknownAnchor { .. }
        | E::AliasError { .. }
        | E::AliasReplayLimitExceeded { .. }
        | E::RecursiveReferencesRequireWeakTypes { .. } => trick("contains an alias"),
        E::MergeKeyNotAllowed { .. } | E::MergeValueNotMapOrSeqOfMaps { .. } => {
            trick("contains a merge key")
        }
        E::MultipleDocuments { .. } => trick("begins another document"),
        E::DuplicateMappingKey { .. } => trick("repeats a key"),
        E::UnsupportedTag { .. } => trick("contains a tag"),
        _ => KubeconfigRefusal::new(&codes::KUBECONFIG_UNREADABLE, at, "is neither YAML nor JSON"),
    }
}

/// The content of the file, with every entry checked.
struct KubeconfigFile<'a> {
    clusters: Vec<NamedSection<KubeconfigCluster<'a>>>,
    users: Vec<NamedSection<KubeconfigUser<'a>>>,
    contexts: Vec<NamedSection<KubeconfigContext<'a>>>,
    current: Option<&'a str>,
}

struct NamedSection<T> {
    name: String,
    entry: T,
}

#[derive(Default)]
struct KubeconfigCluster<'a> {
    path: String,
    server: Option<&'a str>,
    authority_data: Option<&'a str>,
    tls_server_name: Option<&'a str>,
    proxy_url: Option<&'a str>,
}

#[derive(Default)]
struct KubeconfigUser<'a> {
    path: String,
    credential: CredentialText<'a>,
}

#[derive(Default)]
struct KubeconfigContext<'a> {
    path: String,
    cluster: Option<&'a str>,
    user: Option<&'a str>,
}

/// Collects errors, so that the most serious one is reported.
#[derive(Default)]
struct Faults(Vec<KubeconfigRefusal>);

impl Faults {
    fn add(&mut self, code: &'static Code, field: &str, fact: &str) {
        self.0.push(KubeconfigRefusal::new(code, field, fact));
    }

    /// Returns the first dangerous error, else the first error in the order of the file.
    fn gravest(self) -> Option<KubeconfigRefusal> {
        self.0.into_iter().min_by_key(|fault| !fault.is_dangerous())
    }

    fn map<'a>(&mut self, value: &'a Value, field: &str) -> Option<&'a Map<String, Value>> {
        match value {
            Value::Object(map) => return Some(map),
            Value::Null => {}
            _ => self.add(&codes::KUBECONFIG_UNREADABLE, field, "is not a map"),
        }
        None
    }

    /// Returns a string. `null` and the empty string count as absent, as in kubectl.
    fn text<'a>(&mut self, value: &'a Value, field: &str) -> Option<&'a str> {
        match value {
            Value::String(text) if !text.is_empty() => return Some(text),
            Value::String(_) | Value::Null => {}
            _ => self.add(&codes::KUBECONFIG_UNREADABLE, field, "is not a string"),
        }
        None
    }

    /// Reports a field that is refused unless it is absent or empty.
    fn must_be_absent(&mut self, value: &Value, field: &str, code: &'static Code) {
        let absent = match value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(_) | Value::Bool(_) | Value::Number(_) => false,
        };
        if !absent {
            let program: String;
            let fact = match code.id {
                "STR0203" => {
                    program = program_fact(value);
                    program.as_str()
                }
                "STR0204" => "reads a file",
                "STR0205" => "skips TLS verification",
                "STR0206" => "impersonates somebody",
                _ => "sends the connection through a proxy",
            };
            self.add(code, field, fact);
        }
    }

    /// Reports an unknown field. A known dangerous field in a slightly different spelling gets the
    /// code of that field.
    fn unknown(&mut self, key: &str, value: &Value, field: &str) {
        let plain: String =
            key.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        let code = match plain.as_str() {
            "exec" | "authprovider" => &codes::RUNS_PROGRAM,
            "tokenfile" | "clientcertificate" | "clientkey" | "certificateauthority" => {
                &codes::READS_FILE
            }
            "insecureskiptlsverify" => &codes::SKIPS_VERIFICATION,
            "as" | "asuid" | "asuser" | "asgroup" | "asgroups" | "asuserextra" => {
                &codes::IMPERSONATES
            }
            other if other.starts_with("impersonate") => &codes::IMPERSONATES,
            "proxyurl" => &codes::USES_PROXY,
            _ => return self.add(&codes::UNKNOWN_FIELD, field, "is not a known field"),
        };
        self.must_be_absent(value, field, code);
    }
}

/// Describes a program that a credential runs, and the identity to use instead. `exec` contains the
/// settings of the program.
pub(super) fn program_fact(exec: &Value) -> String {
    match identity_type(exec) {
        Some(kind) => format!("runs a program; use an identity of type {kind} instead"),
        None => "runs a program".to_owned(),
    }
}

/// Returns the type of the identity that replaces a program.
fn identity_type(exec: &Value) -> Option<&'static str> {
    let command = exec["command"].as_str()?.rsplit(['/', '\\']).next()?;
    match command.trim_end_matches(".exe") {
        "aws" | "aws-iam-authenticator" => Some("aws"),
        "gke-gcloud-auth-plugin" | "gcloud" => Some("google"),
        "kubelogin" | "az" => Some("azure"),
        "argocd-k8s-auth" => match exec["args"][0].as_str()? {
            "aws" => Some("aws"),
            "gcp" => Some("google"),
            "azure" => Some("azure"),
            _ => None,
        },
        _ => None,
    }
}

impl<'a> KubeconfigFile<'a> {
    fn read(tree: &'a Value) -> Result<Self, KubeconfigRefusal> {
        let Value::Object(top) = tree else {
            let fact = "the kubeconfig is not a map";
            return Err(KubeconfigRefusal::new(&codes::KUBECONFIG_UNREADABLE, "", fact));
        };
        let mut faults = Faults::default();
        let mut file = Self { clusters: vec![], users: vec![], contexts: vec![], current: None };
        for (key, value) in top {
            match key.as_str() {
                "apiVersion" | "kind" => {
                    let expected = if key == "kind" { "Config" } else { "v1" };
                    if faults.text(value, key).is_some_and(|text| text != expected) {
                        let fact = format!("is not {expected}");
                        faults.add(&codes::KUBECONFIG_UNREADABLE, key, &fact);
                    }
                }
                "preferences" | "extensions" => {}
                "current-context" => file.current = faults.text(value, key),
                "clusters" => file.clusters = entries(value, key, "cluster", &mut faults),
                "users" => file.users = entries(value, key, "user", &mut faults),
                "contexts" => file.contexts = entries(value, key, "context", &mut faults),
                _ => faults.unknown(key, value, &shown(key)),
            }
        }
        match faults.gravest() {
            Some(refusal) => Err(refusal),
            None => Ok(file),
        }
    }

    fn choose(
        &self,
        wanted: Option<&str>,
    ) -> Result<(&KubeconfigCluster<'a>, Option<&KubeconfigUser<'a>>), KubeconfigRefusal> {
        let unclear = |field: &str, fact: String| {
            KubeconfigRefusal::new(&codes::CONTEXT_UNCLEAR, field, fact)
        };
        let context = match (wanted.or(self.current), self.contexts.as_slice()) {
            (Some(name), contexts) => {
                contexts.iter().find(|context| context.name == name).ok_or_else(|| {
                    unclear("current-context", format!("names {name:?}, which does not exist"))
                })?
            }
            (None, [only]) => only,
            (None, contexts) => {
                let fact = format!("is not set, and there are {} contexts", contexts.len());
                return Err(unclear("current-context", fact));
            }
        };
        let context = &context.entry;
        let field = |name: &str| format!("{}.{name}", context.path);
        let name = context
            .cluster
            .ok_or_else(|| unclear(&field("cluster"), "names no cluster".to_owned()))?;
        let cluster = self.clusters.iter().find(|c| c.name == name).ok_or_else(|| {
            unclear(&field("cluster"), format!("names {name:?}, which does not exist"))
        })?;
        let user = match context.user {
            None => None,
            Some(name) => Some(self.users.iter().find(|u| u.name == name).ok_or_else(|| {
                unclear(&field("user"), format!("names {name:?}, which does not exist"))
            })?),
        };
        Ok((&cluster.entry, user.map(|user| &user.entry)))
    }
}

/// Parses the named entries of `clusters`, `users` or `contexts`.
fn entries<'a, T: KubeconfigEntry<'a>>(
    value: &'a Value,
    list: &str,
    inner: &str,
    faults: &mut Faults,
) -> Vec<NamedSection<T>> {
    let items = match value {
        Value::Array(items) => items.as_slice(),
        Value::Null => &[],
        _ => {
            faults.add(&codes::KUBECONFIG_UNREADABLE, list, "is not a list");
            &[]
        }
    };
    if items.len() > ENTRIES_MAX {
        let fact = format!("has {} entries, at most {ENTRIES_MAX} are read", items.len());
        faults.add(&codes::KUBECONFIG_TOO_LARGE, list, &fact);
        return Vec::new();
    }
    let mut found: Vec<NamedSection<T>> = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let path = format!("{list}[{index}]");
        let Some(map) = faults.map(item, &path) else { continue };
        let mut name = None;
        let mut entry = T::default();
        for (key, value) in map {
            let field = format!("{path}.{}", shown(key));
            if key == "name" {
                name = faults.text(value, &field);
            } else if key == inner {
                entry.set_path(field.clone());
                for (key, value) in faults.map(value, &field).into_iter().flatten() {
                    entry.read(key, value, &format!("{field}.{}", shown(key)), faults);
                }
            } else if key != "extensions" {
                faults.unknown(key, value, &field);
            }
        }
        let name = name.unwrap_or_default().to_owned();
        if found.iter().any(|other| other.name == name) {
            let fact = format!("repeats the name {name:?}");
            faults.add(&codes::CONTEXT_UNCLEAR, &format!("{path}.name"), &fact);
        }
        found.push(NamedSection { name, entry });
    }
    found
}

trait KubeconfigEntry<'a>: Default {
    fn set_path(&mut self, path: String);
    fn read(&mut self, key: &str, value: &'a Value, field: &str, faults: &mut Faults);
}

impl<'a> KubeconfigEntry<'a> for KubeconfigCluster<'a> {
    fn set_path(&mut self, path: String) {
        self.path = path;
    }

    fn read(&mut self, key: &str, value: &'a Value, field: &str, faults: &mut Faults) {
        match key {
            "server" => self.server = faults.text(value, field),
            "certificate-authority-data" => self.authority_data = faults.text(value, field),
            "tls-server-name" => self.tls_server_name = faults.text(value, field),
            "proxy-url" => self.proxy_url = faults.text(value, field),
            "insecure-skip-tls-verify" if value == &Value::Bool(false) => {}
            // Old versions of Rancher write `api-version`; `disable-compression` only affects
            // performance.
            "extensions" | "api-version" | "disable-compression" => {}
            _ => faults.unknown(key, value, field),
        }
    }
}

impl<'a> KubeconfigEntry<'a> for KubeconfigUser<'a> {
    fn set_path(&mut self, path: String) {
        self.path = path;
    }

    fn read(&mut self, key: &str, value: &'a Value, field: &str, faults: &mut Faults) {
        match key {
            "token" => self.credential.token = faults.text(value, field),
            "username" => self.credential.username = faults.text(value, field),
            "password" => self.credential.password = faults.text(value, field),
            "client-certificate-data" => {
                self.credential.certificate_data = faults.text(value, field);
            }
            "client-key-data" => self.credential.key_data = faults.text(value, field),
            "extensions" => {}
            "as-user-extra" if value.as_object().is_some_and(Map::is_empty) => {}
            _ => faults.unknown(key, value, field),
        }
    }
}

impl<'a> KubeconfigEntry<'a> for KubeconfigContext<'a> {
    fn set_path(&mut self, path: String) {
        self.path = path;
    }

    fn read(&mut self, key: &str, value: &'a Value, field: &str, faults: &mut Faults) {
        match key {
            "cluster" => self.cluster = faults.text(value, field),
            "user" => self.user = faults.text(value, field),
            "namespace" | "extensions" => {}
            _ => faults.unknown(key, value, field),
        }
    }
}

impl KubeconfigCluster<'_> {
    fn field(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    fn server(&self, loopback: Loopback) -> Result<Uri, KubeconfigRefusal> {
        let field = self.field("server");
        match self.server {
            Some(server) => server_uri(server, loopback, &field),
            None => Err(KubeconfigRefusal::new(&codes::SERVER_URL, field, "is missing")),
        }
    }

    fn authority(&self) -> Result<Option<Vec<u8>>, KubeconfigRefusal> {
        let field = || self.field("certificate-authority-data");
        self.authority_data.map(|data| authority(data, &field())).transpose()
    }

    fn tls_server_name(&self) -> Result<Option<String>, KubeconfigRefusal> {
        let field = || self.field("tls-server-name");
        self.tls_server_name.map(|name| server_name(name, &field())).transpose()
    }
}

/// Decodes a CA bundle in base64.
pub(super) fn authority(data: &str, field: &str) -> Result<Vec<u8>, KubeconfigRefusal> {
    let pem = decode(data, field)?;
    // Unreadable blocks next to a valid one are reported once the cluster is read.
    if CaBundle::read(&pem).certificates.is_empty() {
        let fact = "contains no readable PEM certificate";
        return Err(KubeconfigRefusal::new(&codes::CREDENTIAL_UNUSABLE, field, fact));
    }
    Ok(pem)
}

/// Parses the URL of an API server that may be dialled.
pub(super) fn server_uri(
    text: &str,
    loopback: Loopback,
    field: &str,
) -> Result<Uri, KubeconfigRefusal> {
    let refused = |fact: &str| KubeconfigRefusal::new(&codes::SERVER_URL, field, fact);
    let server = ServerUrl::parse(text).map_err(refused)?;
    check_server(&server, loopback, field)?;
    server.url.parse().map_err(|_| refused("is not a usable URL"))
}

/// Checks the name that a server's certificate must be valid for.
pub(super) fn server_name(name: &str, field: &str) -> Result<String, KubeconfigRefusal> {
    if ServerName::try_from(name).is_err() {
        let fact = "is neither a DNS name nor an address";
        return Err(KubeconfigRefusal::new(&codes::SERVER_URL, field, fact));
    }
    Ok(name.to_owned())
}

/// The credential of a user, as text: certificate and key in base64.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CredentialText<'a> {
    pub(super) token: Option<&'a str>,
    pub(super) username: Option<&'a str>,
    pub(super) password: Option<&'a str>,
    pub(super) certificate_data: Option<&'a str>,
    pub(super) key_data: Option<&'a str>,
}

impl KubeconfigUser<'_> {
    fn credential(&self) -> Result<ApiCredential, KubeconfigRefusal> {
        self.credential.read(|name| format!("{}.{name}", self.path))
    }
}

impl CredentialText<'_> {
    /// Returns the credential. Follows client-go: a token or a user name with password, not both. A
    /// certificate may be combined with a token. A certificate next to a password (GKE before 1.19)
    /// is used alone. `field` returns the path of a field, for messages.
    pub(super) fn read(
        self,
        field: impl Fn(&str) -> String,
    ) -> Result<ApiCredential, KubeconfigRefusal> {
        let unusable = |name: &str, fact: &str| {
            KubeconfigRefusal::new(&codes::CREDENTIAL_UNUSABLE, field(name), fact)
        };
        let token = match self.token {
            // RFC 6750 allows fewer characters; this check ensures that the token is one header.
            Some(token) if token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Some(Redacted::new(token.to_owned()))
            }
            Some(_) => {
                return Err(unusable("token", "contains an invalid character"));
            }
            None => None,
        };
        let certificate = match (self.certificate_data, self.key_data) {
            (None, None) => None,
            (Some(_), None) => return Err(unusable("client-key-data", "is missing")),
            (None, Some(_)) => return Err(unusable("client-certificate-data", "is missing")),
            (Some(certificate), Some(key)) => {
                let certificate_pem = decode(certificate, &field("client-certificate-data"))?;
                let key_pem = decode(key, &field("client-key-data"))?;
                let chain = certificates(&certificate_pem, &field("client-certificate-data"))?;
                if chain.first().is_some_and(is_version_1) {
                    return Err(unusable("client-certificate-data", CERTIFICATE_VERSION_1));
                }
                check_key(chain, &key_pem).map_err(|fact| unusable("client-key-data", fact))?;
                Some((certificate_pem, Redacted::new(key_pem)))
            }
        };
        Ok(match (certificate, token, self.username) {
            (_, Some(_), Some(_)) => {
                return Err(unusable("username", "is set next to a token: use only one"));
            }
            (Some((certificate_pem, key_pem)), Some(token), None) => {
                ApiCredential::CertificateAndToken { certificate_pem, key_pem, token }
            }
            (Some((certificate_pem, key_pem)), None, _) => {
                ApiCredential::Certificate { certificate_pem, key_pem }
            }
            (None, Some(token), None) => ApiCredential::Token(token),
            (None, None, Some(name)) => {
                if name.contains(':') || name.chars().any(char::is_control) {
                    return Err(unusable("username", "contains an invalid character"));
                }
                ApiCredential::Basic {
                    username: name.to_owned(),
                    password: Redacted::new(self.password.unwrap_or_default().to_owned()),
                }
            }
            (None, None, None) => ApiCredential::None,
        })
    }
}

fn decode(data: &str, field: &str) -> Result<Vec<u8>, KubeconfigRefusal> {
    // Folded text contains line breaks; Go ignores them too.
    let joined: String = data.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD
        .decode(joined)
        .map_err(|_| KubeconfigRefusal::new(&codes::CREDENTIAL_UNUSABLE, field, "is not base64"))
}

fn certificates(
    pem: &[u8],
    field: &str,
) -> Result<Vec<CertificateDer<'static>>, KubeconfigRefusal> {
    let unusable = |fact| KubeconfigRefusal::new(&codes::CREDENTIAL_UNUSABLE, field, fact);
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| unusable("is not PEM"))?;
    if found.is_empty() {
        return Err(unusable("contains no PEM certificate"));
    }
    for certificate in &found {
        if !matches!(x509_parser::parse_x509_certificate(certificate), Ok(([], _))) {
            return Err(unusable("contains an unreadable certificate"));
        }
    }
    Ok(found)
}

fn is_version_1(certificate: &CertificateDer<'_>) -> bool {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    parsed.is_ok_and(|(_, parsed)| parsed.version() == X509Version::V1)
}

fn check_key(chain: Vec<CertificateDer<'static>>, pem: &[u8]) -> Result<(), &'static str> {
    use rustls::{Error, InconsistentKeys};

    let key = private_key(pem)?;
    let key = rustls::crypto::ring::default_provider()
        .key_provider
        .load_private_key(key)
        .map_err(|_| "contains an unusable key")?;
    match rustls::sign::CertifiedKey::new(chain, key).keys_match() {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err("does not match the certificate")
        }
        _ => Ok(()),
    }
}

/// Returns a key of the file for use in a message: short, and without control characters.
fn shown(key: &str) -> String {
    key.escape_debug().take(60).collect()
}

#[cfg(test)]
mod tests;
