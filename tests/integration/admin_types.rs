//! The published JSON schema of the admin API and the page's type declarations, generated from the
//! crate `admin-api`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};
use strait_admin_api as api;

const HOW: &str = "Generated: BLESS=1 cargo test --workspace --test integration generated_pages";

/// Returns the schema document: the definitions of all types, and the response of each request.
pub(super) fn schema_file() -> String {
    let (responses, definitions) = schemas();
    let document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": HOW,
        "title": "Responses of the admin API",
        "description": "Each property is a request, with the schema of the response. Readers ignore unknown fields, and accept other texts in enumerations: a newer server may send them.",
        "type": "object",
        "properties": responses,
        "$defs": definitions,
    });
    format!("{document:#}\n")
}

/// Returns the type declarations for the scripts of the page.
pub(super) fn declarations() -> String {
    let (responses, definitions) = schemas();
    let mut out = format!("// {HOW}\n\n");
    out += "/** The responses by path. */\nexport interface Responses {\n";
    for (request, schema) in &responses {
        if let Some(path) = request.strip_prefix("GET ") {
            writeln!(out, "  {path:?}: {};", type_of(schema)).expect("a string");
        }
    }
    out += "}\n\n/** The response to a request; `any` if the path has a query. */\n";
    out += "export type ResponseTo<P extends string> = P extends keyof Responses ? Responses[P] : any;\n";
    for (name, schema) in &definitions {
        out += &declaration(name, schema);
    }
    out
}

/// Returns the schemas of the responses by request, and of all types by name.
fn schemas() -> (Map<String, Value>, Map<String, Value>) {
    let mut types = Types {
        generator: SchemaSettings::draft2020_12().for_serialize().into_generator(),
        responses: Map::new(),
    };
    types.add::<Vec<api::Cluster>>("GET /debug/clusters");
    types.add::<Vec<api::Service>>("GET /debug/services");
    types.add::<Vec<api::ServiceEndpoint>>("GET /debug/endpoints");
    types.add::<Vec<api::Source>>("GET /debug/sources");
    types.add::<Vec<api::Network>>("GET /debug/networks");
    types.add::<Vec<api::RelayRow>>("GET /debug/relays");
    types.add::<Vec<api::ClusterAddresses>>("GET /debug/addresses");
    types.add::<Vec<api::Proxy>>("GET /debug/proxies");
    types.add::<api::Summary>("GET /debug/summary");
    types.add::<api::Explanation>("GET /debug/explain");
    types.add::<api::ImportExplanation>("GET /debug/explain/import");
    types.add::<api::PolicyExplanation>("GET /debug/explain/policy");
    types.add::<api::RouteExplanation>("GET /debug/explain/route");
    types.add::<api::AccessSnapshot>("GET /debug/access");
    types.add::<Vec<api::ObjectStatus>>("GET /debug/config");
    types.add::<Vec<api::PolicyReach>>("GET /debug/config/reach");
    types.add::<api::CertificateStatus>("GET /debug/certificates");
    types.add::<api::Mesh>("GET /debug/mesh");
    types.add::<BTreeMap<String, api::CodeMeaning>>("GET /debug/codes");
    types.add::<api::Policy>("GET /debug/policy");
    types.add::<Vec<api::ChangeEvent>>("GET /debug/events");
    types.add::<Vec<api::HistoryRow>>("GET /debug/history");
    types.add::<api::MeshDiff>("GET /debug/diff");
    types.add::<api::Push>("GET /debug/push");
    types.add::<api::HoldStatus>("GET /debug/hold");
    types.add::<api::Rollout>("GET /debug/rollout");
    types.add::<api::Replicas>("GET /debug/replicas");
    types.add::<api::MeasuredTraffic>("GET /debug/traffic");
    types.add::<api::ChangePreview>("POST /debug/diff");
    types.add::<api::HoldPreview>("POST /debug/hold");
    types.add::<api::ScopePreview>("POST /debug/scope");
    types.add::<api::LoginCode>("GET /api/login-code");
    types.add::<api::ProbeIdentity>("POST /api/probe-identity");
    types.add::<api::HoldStatus>("POST /api/hold");
    types.add::<api::HoldStatus>("POST /api/release");
    types.add::<api::Rollout>("POST /api/rollout");
    let Types { mut generator, responses } = types;
    (responses, generator.take_definitions(true))
}

struct Types {
    generator: SchemaGenerator,
    responses: Map<String, Value>,
}

impl Types {
    fn add<T: JsonSchema>(&mut self, request: &str) {
        let schema = self.generator.subschema_for::<T>();
        self.responses.insert(request.to_owned(), schema.to_value());
    }
}

/// Declares an object as an interface, and an enumeration as a union.
fn declaration(name: &str, schema: &Value) -> String {
    let mut out = format!("\n{}", comment("", schema));
    let Some(fields) = schema["properties"].as_object() else {
        return out + &format!("export type {name} = {};\n", type_of(schema));
    };
    let required: Vec<&Value> = schema["required"].as_array().into_iter().flatten().collect();
    out += &format!("export interface {name} {{\n");
    for (field, schema) in fields {
        let optional = if required.contains(&&json!(field)) { "" } else { "?" };
        out += &comment("  ", schema);
        out += &format!("  {field}{optional}: {};\n", type_of(schema));
    }
    if schema.get("additionalProperties").is_some() {
        out += "  [setting: string]: any;\n";
    }
    out + "}\n"
}

fn comment(indent: &str, schema: &Value) -> String {
    let about = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
    if about.is_empty() { about } else { format!("{indent}/** {about} */\n") }
}

/// Returns the TypeScript type of a schema.
fn type_of(schema: &Value) -> String {
    if let Some(path) = schema["$ref"].as_str() {
        return path.trim_start_matches("#/$defs/").to_owned();
    }
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(variants) = schema["anyOf"].as_array() {
        // `string` alone would absorb the known values, so editors would not offer them.
        let is_enum = variants.iter().any(|variant| variant.get("const").is_some());
        let variants = variants.iter().map(|variant| match type_of(variant).as_str() {
            "string" if is_enum => "(string & {})".to_owned(),
            other => other.to_owned(),
        });
        return variants.collect::<Vec<_>>().join(" | ");
    }
    match &schema["type"] {
        Value::Array(types) => {
            let one = |name: &Value| {
                let mut single = schema.clone();
                single["type"] = name.clone();
                type_of(&single)
            };
            types.iter().map(one).collect::<Vec<_>>().join(" | ")
        }
        Value::String(name) => match name.as_str() {
            "integer" | "number" => "number".to_owned(),
            "array" => format!("Array<{}>", type_of(&schema["items"])),
            "object" => format!("Record<string, {}>", type_of(&schema["additionalProperties"])),
            other => other.to_owned(),
        },
        _ => "any".to_owned(),
    }
}
