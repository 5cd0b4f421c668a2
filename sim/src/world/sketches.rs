//! The objects of a world, encoded on access.
//!
//! All Services of a world differ only in a few words, and so do its slices and pods. Each kind is
//! encoded into stencils once; an object then consists only of its numbers in the plan.

use std::sync::Arc;

use serde_json::{Value, json};

use super::plan::{Place, Plan, Shape, as_u32, node_name, slice_name};
use crate::object::{Name, Sketch};
use crate::objects::{self, Endpoint};
use crate::protobuf::{self, Message};
use crate::stencil::{Node, Stencil, block, mark};
use crate::store::uid;
use crate::weight;

// Indexes of the values in all stencils.
const NAME: usize = 0;
const NAMESPACE: usize = 1;
const UID: usize = 2;
const VERSION: usize = 3;
const SERVICE: usize = 4;
const SERVICE_UID: usize = 5;
const ADDRESS: usize = 6;
const NODE: usize = 7;
const ZONE: usize = 8;
const ENDPOINTS: usize = 9;
const VALUES: usize = 10;

/// The label that the controller sets on slices of a headless Service.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// The plan and stencils of a world, shared by all sketches.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) plan: Plan,
    /// One per [`Shape`].
    services: [Forms; 3],
    slices: [Forms; 3],
    endpoint: Forms,
    account: Forms,
    pod: Forms,
}

/// The stencils of one kind of object, one per encoding.
#[derive(Debug)]
struct Forms {
    json: Stencil,
    protobuf: Stencil,
    selectable: Stencil,
    shared: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Protobuf,
    Selectable,
}

impl Scene {
    pub(super) fn new(plan: Plan) -> Scene {
        let [name, namespace, service] = [NAME, NAMESPACE, SERVICE].map(mark);
        let slice = |shape: Shape| {
            let mut slice =
                objects::endpoint_slice(&namespace, &service, &name, shape.ports(), &[]);
            slice = weight::endpoint_slice(slice);
            if shape == Shape::Headless {
                slice = objects::labelled(slice, HEADLESS_LABEL, "");
            }
            slice["metadata"]["ownerReferences"][0]["uid"] = json!(mark(SERVICE_UID));
            slice["metadata"]["generation"] = json!(1);
            slice["endpoints"] = json!(block(ENDPOINTS));
            Forms::of(slice)
        };
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"namespace": namespace, "name": name, "creationTimestamp": weight::CREATED},
        });
        let mut pod = objects::pod(&namespace, &name, &service, &mark(ADDRESS), &mark(NODE));
        pod = weight::pod(pod);
        let service = |shape: Shape| {
            let service = match shape {
                Shape::Headless => objects::headless_service(&namespace, &name, shape.ports()),
                _ => objects::service(&namespace, &name, &mark(ADDRESS), shape.ports()),
            };
            Forms::of(weight::service(service))
        };
        Scene {
            services: Shape::ALL.map(service),
            slices: Shape::ALL.map(slice),
            endpoint: Forms::of_endpoint(plan.options.pods),
            account: Forms::of(account),
            pod: Forms::of(pod),
            plan,
        }
    }

    /// Returns the value from which all UIDs of a cluster are derived.
    pub(super) fn identity(&self, cluster: usize) -> String {
        format!("c{} of world {}", cluster + 1, self.plan.options.seed)
    }

    pub(super) fn sketch(
        self: &Arc<Self>,
        cluster: usize,
        service: usize,
        what: What,
    ) -> Arc<dyn Sketch> {
        let (cluster, service) = (as_u32(cluster), as_u32(service));
        Arc::new(Sketched { scene: self.clone(), cluster, service, what })
    }
}

impl Forms {
    fn of(mut object: Value) -> Forms {
        object["metadata"]["uid"] = json!(mark(UID));
        object["metadata"]["resourceVersion"] = json!(mark(VERSION));
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let message = Message::named(&text("apiVersion"), &text("kind"));
        let protobuf = message.map(|message| protobuf::nodes(message, &object));
        if let Some(fields) = object.as_object_mut() {
            fields.retain(|field, _| field != "kind" && field != "apiVersion");
        }
        let json = Stencil::json(&object);
        let metadata = &object["metadata"];
        let selectable = json!({
            "metadata": {
                "namespace": metadata["namespace"], "name": metadata["name"], "labels": metadata["labels"],
            },
            "spec": scalars(&object["spec"]),
            "status": scalars(&object["status"]),
        });
        Forms {
            json,
            protobuf: Stencil::of(protobuf.unwrap_or_default()),
            selectable: Stencil::json(&selectable),
            shared: selectable,
        }
    }

    /// Returns the stencils of one endpoint in a slice.
    fn of_endpoint(with_pod: bool) -> Forms {
        let mut endpoint = Endpoint::new(&mark(ADDRESS));
        endpoint.node = Some(mark(NODE));
        endpoint.zone = Some(mark(ZONE));
        endpoint.pod = with_pod.then(|| mark(NAME));
        let mut endpoint = endpoint.to_value(&mark(NAMESPACE));
        if with_pod {
            endpoint["targetRef"]["uid"] = json!(mark(UID));
        }
        let message = Message::called("Endpoint").expect("the table has it");
        let mut tag = Vec::new();
        protobuf::open_field(2, &mut tag);
        let inner = protobuf::nodes(message, &endpoint);
        Forms {
            json: Stencil::json(&endpoint),
            protobuf: Stencil::of(vec![Node::Text(tag), Node::Sized(inner)]),
            selectable: Stencil::default(),
            shared: Value::Null,
        }
    }

    fn get(&self, form: Form) -> &Stencil {
        match form {
            Form::Json => &self.json,
            Form::Protobuf => &self.protobuf,
            Form::Selectable => &self.selectable,
        }
    }
}

/// Returns the fields that are neither lists nor objects.
fn scalars(part: &Value) -> Value {
    let fields = part.as_object().into_iter().flatten();
    let plain = fields.filter(|(_, value)| !value.is_array() && !value.is_object());
    plain.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The object of a service.
#[derive(Debug, Clone)]
pub(super) enum What {
    Service,
    Account,
    /// A slice, by its number, with its endpoints.
    Slice(u32, Arc<[Place]>),
    Pod(Place),
}

#[derive(Debug)]
struct Sketched {
    scene: Arc<Scene>,
    cluster: u32,
    service: u32,
    what: What,
}

impl Sketch for Sketched {
    fn write_json(&self, version: u64, out: &mut Vec<u8>) {
        self.write(Form::Json, version, out);
    }

    fn write_protobuf(&self, version: u64, out: &mut Vec<u8>) {
        self.write(Form::Protobuf, version, out);
    }

    fn selectable(&self) -> Value {
        let mut out = Vec::new();
        self.write(Form::Selectable, 0, &mut out);
        serde_json::from_slice(&out).expect("a stencil of JSON, filled with plain words")
    }

    fn shared(&self) -> &Value {
        &self.forms().shared
    }
}

impl Sketched {
    fn forms(&self) -> &Forms {
        let scene = &*self.scene;
        let shape = scene.plan.shape(self.service as usize) as usize;
        match &self.what {
            What::Service => &scene.services[shape],
            What::Account => &scene.account,
            What::Slice(..) => &scene.slices[shape],
            What::Pod(_) => &scene.pod,
        }
    }

    fn write(&self, form: Form, version: u64, out: &mut Vec<u8>) {
        let (cluster, number) = (self.cluster as usize, self.service as usize);
        let scene = &*self.scene;
        let plan = &scene.plan;
        let identity = scene.identity(cluster);
        let Name { namespace, name: service } = &plan.service(cluster, number);
        let version = version.to_string();
        let uid = |plural: &str, name: &str| uid(&[&identity, plural, namespace, name], 0);
        let service_uid = uid("services", service);

        let mut values: [&[u8]; VALUES] = [b""; VALUES];
        values[NAMESPACE] = namespace.as_bytes();
        values[SERVICE] = service.as_bytes();
        values[SERVICE_UID] = service_uid.as_bytes();
        values[VERSION] = version.as_bytes();
        let stencil = self.forms().get(form);
        match &self.what {
            What::Service => {
                let address = plan.cluster_ip(cluster, number);
                values[NAME] = service.as_bytes();
                values[UID] = service_uid.as_bytes();
                values[ADDRESS] = address.as_bytes();
                stencil.fill(&values, out);
            }
            What::Account => {
                let uid = uid("serviceaccounts", service);
                values[NAME] = service.as_bytes();
                values[UID] = uid.as_bytes();
                stencil.fill(&values, out);
            }
            What::Slice(slice, places) => {
                let name = slice_name(service, *slice as usize);
                let uid = uid("endpointslices", &name);
                let mut endpoints = Vec::new();
                let places = if form == Form::Selectable { &[] } else { &**places };
                for place in places {
                    self.write_endpoint(form, place, &values, &identity, &mut endpoints);
                }
                if form == Form::Json {
                    endpoints.insert(0, b'[');
                    endpoints.push(b']');
                }
                values[NAME] = name.as_bytes();
                values[UID] = uid.as_bytes();
                values[ENDPOINTS] = &endpoints;
                stencil.fill(&values, out);
            }
            What::Pod(place) => {
                let name = place.pod.name(service);
                let uid = uid("pods", &name);
                let address = plan.address(cluster, number, place.pod);
                let node = node_name(cluster, place.node as usize);
                values[NAME] = name.as_bytes();
                values[UID] = uid.as_bytes();
                values[ADDRESS] = address.as_bytes();
                values[NODE] = node.as_bytes();
                stencil.fill(&values, out);
            }
        }
    }

    fn write_endpoint(
        &self,
        form: Form,
        place: &Place,
        values: &[&[u8]; VALUES],
        identity: &str,
        out: &mut Vec<u8>,
    ) {
        let (cluster, number) = (self.cluster as usize, self.service as usize);
        let plan = &self.scene.plan;
        let [namespace, service] = [NAMESPACE, SERVICE].map(|i| values[i]);
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
        let address = plan.address(cluster, number, place.pod);
        let node = node_name(cluster, place.node as usize);
        let (_, zone) = plan.locality(cluster, place.node as usize);
        let (mut name, mut pod_uid) = (String::new(), String::new());
        if plan.options.pods {
            name = place.pod.name(text(service));
            pod_uid = uid(&[identity, "pods", text(namespace), &name], 0);
        }
        let mut values = *values;
        values[NAME] = name.as_bytes();
        values[UID] = pod_uid.as_bytes();
        values[ADDRESS] = address.as_bytes();
        values[NODE] = node.as_bytes();
        values[ZONE] = zone.as_bytes();
        if form == Form::Json && !out.is_empty() {
            out.push(b',');
        }
        self.scene.endpoint.get(form).fill(&values, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use crate::world::{WorldOptions, fill};

    /// The protobuf form omits only empty values.
    #[test]
    fn json_and_protobuf_forms_are_equal() {
        for pods in [true, false] {
            let options =
                WorldOptions { pods, endpoints: 120, headless: 2, ..WorldOptions::default() };
            let plan = Plan::new(options).expect("small");
            let store = Store::new("c1 of world 1", 10);
            fill(&Arc::new(Scene::new(plan)), 0, &store).expect("valid");
            for kind in ["Service", "EndpointSlice", "Pod", "ServiceAccount"] {
                let message = Message::called(kind).expect("the table has it");
                for object in store.all(kind) {
                    let bytes = object.protobuf(message).into_owned();
                    object.keep_protobuf(message);
                    assert_eq!(object.protobuf(message), bytes, "kept, {kind}");
                    let again = protobuf::decode(message, &bytes).expect("it can be read");
                    assert_eq!(bytes, protobuf::encode(message, &object.value()), "{kind}");
                    assert_eq!(again["metadata"], object.value()["metadata"]);
                }
            }
            let slices = store.all("EndpointSlice").len();
            assert_eq!(slices, 20, "120 endpoints need two slices");
        }
    }

    #[test]
    fn selectable_fields_of_a_sketch_match_the_object() {
        let plan = Plan::new(WorldOptions { pods: true, ..WorldOptions::default() });
        let store = Store::new("c1 of world 1", 10);
        fill(&Arc::new(Scene::new(plan.expect("small"))), 0, &store).expect("valid");
        for kind in ["Service", "EndpointSlice", "Pod", "ServiceAccount"] {
            let object = store.all(kind).pop().expect("some");
            let (little, whole) = (object.selectable(), object.value());
            for field in ["namespace", "name", "labels"] {
                assert_eq!(little["metadata"][field], whole["metadata"][field], "{kind}");
            }
            for field in [
                "/spec/nodeName",
                "/spec/clusterIP",
                "/spec/type",
                "/status/phase",
                "/status/podIP",
            ] {
                assert_eq!(little.pointer(field), whole.pointer(field), "{kind} {field}");
            }
        }
    }
}
