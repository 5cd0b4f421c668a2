//! Finds the workload of a pod from its controller, for example the Deployment of a ReplicaSet.

/// Returns the name of the workload that created a pod through a controller of this kind and name:
/// the owner of the controller, if it is known to create such controllers; otherwise the
/// controller. `label` returns a label of the pod.
pub fn workload_of_controller<'a>(
    kind: &str,
    name: &'a str,
    label: impl Fn(&str) -> Option<&'a str>,
) -> &'a str {
    let without = |hash: &str| name.strip_suffix(label(hash)?)?.strip_suffix('-');
    let found = match kind {
        // Created by a Deployment, or by a Rollout of Argo.
        "ReplicaSet" => {
            without("pod-template-hash").or_else(|| without("rollouts-pod-template-hash"))
        }
        // Created by a DeploymentConfig of OpenShift.
        "ReplicationController" => label("deploymentconfig"),
        // Created by a CronJob: the name of each Job ends with the minute or second when it
        // started.
        "Job" => name
            .rsplit_once('-')
            .filter(|(_, time)| {
                (8..=10).contains(&time.len()) && time.bytes().all(|byte| byte.is_ascii_digit())
            })
            .map(|(name, _)| name),
        _ => None,
    };
    found.filter(|name| !name.is_empty()).unwrap_or(name)
}
