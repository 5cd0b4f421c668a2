//! Volumes that a pod's annotations add for its sidecar: `sidecar.istio.io/userVolume` and
//! `userVolumeMount`.
//!
//! As in Istio, each annotation is a JSON object by volume name, or a JSON list of elements with a
//! `name`. The API server validates the source of a volume, as for each volume of a pod.

use serde_json::{Value, json};

use super::annotations::Annotation;
use super::object::{items, text};
use super::refusal::InjectRefusal;
use strait_base::codes;

/// The additional volumes of a pod, and the additional mounts of the sidecar.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct UserVolumes {
    pub(super) volumes: Vec<Value>,
    pub(super) mounts: Vec<Value>,
}

impl UserVolumes {
    /// Reads the two annotations.
    pub(super) fn read(annotations: &Value) -> Result<Self, InjectRefusal> {
        let find = |name: &str| Annotation::find(annotations, "sidecar.istio.io/", name);
        let (volumes, mounts) = (find("userVolume"), find("userVolumeMount"));
        let read =
            |annotation: Option<&Annotation<'_>>| annotation.map_or(Ok(Vec::new()), elements);
        let found = Self { volumes: read(volumes.as_ref())?, mounts: read(mounts.as_ref())? };
        let is_absolute = |mount: &Value| {
            text(mount, "mountPath")
                .is_some_and(|path| path.starts_with('/') && !path.contains(':'))
        };
        match mounts.filter(|_| !found.mounts.iter().all(is_absolute)) {
            Some(mounts) => Err(mounts.wrong("JSON in which each mount has an absolute mountPath")),
            None => Ok(found),
        }
    }

    /// Checks the volumes of a pod, and the names and paths of the sidecar's volumes.
    ///
    /// # Errors
    /// Two volumes have one name, a mount has no volume, or the path of a mount overlaps a path of
    /// the sidecar.
    pub(super) fn check(&self, pod: &Value, own: &[(&str, &str)]) -> Result<(), InjectRefusal> {
        let volume_name = |value: &Value| text(value, "name").unwrap_or_default().to_owned();
        let mut names: Vec<String> =
            items(&pod["spec"], "volumes").iter().map(volume_name).collect();
        names.extend(own.iter().map(|(name, _)| (*name).to_owned()));
        for name in self.volumes.iter().map(volume_name) {
            if names.contains(&name) {
                let fact = format!("its userVolume {name} has the name of another volume");
                return Err(InjectRefusal::new(&codes::INJECT_NAME_TAKEN, fact));
            }
            names.push(name);
        }
        for mount in &self.mounts {
            let (name, path) = (volume_name(mount), text(mount, "mountPath").unwrap_or_default());
            let fact = if !names.contains(&name) {
                format!("its userVolumeMount {name} names no volume of the pod and no userVolume")
            } else if let Some((_, own)) = own.iter().find(|(_, own)| overlap(path, own)) {
                format!(
                    "its userVolumeMount {name} at {path} overlaps {own}, which the sidecar uses"
                )
            } else {
                continue;
            };
            return Err(InjectRefusal::new(&codes::INJECT_ANNOTATION, fact));
        }
        Ok(())
    }
}

/// Returns the elements of an annotation as a list, each with its `name`.
fn elements(annotation: &Annotation<'_>) -> Result<Vec<Value>, InjectRefusal> {
    const WANTED: &str = "a JSON object of objects by volume name";
    let wrong = || annotation.wrong(WANTED);
    let elements = match serde_json::from_str(annotation.value).map_err(|_| wrong())? {
        Value::Object(by_name) => by_name
            .into_iter()
            .map(|(name, mut element)| {
                element.as_object_mut()?.entry("name").or_insert_with(|| json!(name));
                Some(element)
            })
            .collect::<Option<Vec<Value>>>(),
        Value::Array(list) => Some(list),
        _ => None,
    };
    let is_named = |element: &Value| text(element, "name").is_some_and(|name| !name.is_empty());
    elements.filter(|elements| elements.iter().all(is_named)).ok_or_else(wrong)
}

/// Returns whether a path contains the other path.
fn overlap(first: &str, second: &str) -> bool {
    let parts = |path: &str| -> Vec<String> {
        let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
        parts.map(str::to_owned).collect()
    };
    let (first, second) = (parts(first), parts(second));
    first.starts_with(&second) || second.starts_with(&first)
}
