//! Names by which users select a proxy.

/// A name of a proxy: `NAME.NAMESPACE[@CLUSTER]`, a prefix of it, or
/// `deploy/NAME.NAMESPACE[@CLUSTER]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyName<'a> {
    cluster: Option<&'a str>,
    form: NameForm<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameForm<'a> {
    Pod(&'a str),
    Deployment(&'a str),
}

/// How a name matches a proxy, the most exact first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameMatch {
    /// It is the name of one stream or the whole node ID.
    Unique,
    /// It is the name of the pod.
    Exact,
    /// It is the name of the pod's Deployment. Any pod of the Deployment is meant.
    Deployment,
    /// It is the beginning of the pod's name. It must be unique.
    Prefix,
}

impl<'a> ProxyName<'a> {
    /// Parses a name.
    pub fn parse(text: &'a str) -> Self {
        let (text, cluster) = match text.rsplit_once('@') {
            Some((text, cluster)) => (text, Some(cluster)),
            None => (text, None),
        };
        let deployment =
            ["deploy/", "deployment/"].into_iter().find_map(|it| text.strip_prefix(it));
        let form = deployment.map_or(NameForm::Pod(text), NameForm::Deployment);
        Self { cluster, form }
    }

    /// Returns how the name matches a proxy, whose `workload` is `name.namespace`.
    pub fn matches(&self, workload: &str, cluster: &str) -> Option<NameMatch> {
        if self.cluster.is_some_and(|wanted| wanted != cluster) {
            return None;
        }
        match self.form {
            NameForm::Deployment(deployment) => {
                let is_of = is_of_deployment(workload, deployment);
                is_of.then_some(NameMatch::Deployment)
            }
            NameForm::Pod(pod) if pod == workload => Some(NameMatch::Exact),
            NameForm::Pod(pod) => is_prefix(pod, workload).then_some(NameMatch::Prefix),
        }
    }
}

/// Returns whether `pod` is a prefix of `workload`, or a prefix of its name followed by its
/// namespace.
fn is_prefix(pod: &str, workload: &str) -> bool {
    let starts = |(prefix, namespace): (&str, &str)| {
        let of = workload.rsplit_once('.');
        of.is_some_and(|(name, own)| own == namespace && name.starts_with(prefix))
    };
    !pod.is_empty() && (workload.starts_with(pod) || pod.rsplit_once('.').is_some_and(starts))
}

/// Returns whether the pod has a name that a ReplicaSet of the Deployment generates:
/// `DEPLOYMENT-HASH-RANDOM`, with a hash of at most 10 characters and 5 random characters.
fn is_of_deployment(workload: &str, deployment: &str) -> bool {
    let (Some((pod, namespace)), Some((name, wanted))) =
        (workload.rsplit_once('.'), deployment.rsplit_once('.'))
    else {
        return false;
    };
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let suffix = pod.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    namespace == wanted
        && suffix.and_then(|suffix| suffix.split_once('-')).is_some_and(|(hash, random)| {
            (1..=10).contains(&hash.len()) && random.len() == 5 && plain(hash) && plain(random)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "web-7d4b9c5f6-x2x4z.shop";

    #[test]
    fn pod_is_named_by_its_name_a_prefix_or_its_deployment() {
        for (text, expected) in [
            (POD, NameMatch::Exact),
            ("web-7d4b9c5f6-x2x4z.shop@east", NameMatch::Exact),
            ("web-7d4b9c5f6-x2x4z", NameMatch::Prefix),
            ("web-7d4", NameMatch::Prefix),
            ("web-7d4.shop", NameMatch::Prefix),
            ("web-7d4.shop@east", NameMatch::Prefix),
            ("deploy/web.shop", NameMatch::Deployment),
            ("deployment/web.shop@east", NameMatch::Deployment),
        ] {
            assert_eq!(ProxyName::parse(text).matches(POD, "east"), Some(expected), "{text}");
        }
    }

    #[test]
    fn name_of_another_pod_does_not_match() {
        for text in [
            "",
            "eb-7d4",
            "web-7d4.sho",
            "web-7d4@west",
            "deploy/web.pay",
            "deploy/we.shop",
            "deploy/web",
            "deploy/web-7d4b9c5f6.shop",
            "web-7d4b9c5f6-x2x4z.shop.",
        ] {
            assert_eq!(ProxyName::parse(text).matches(POD, "east"), None, "{text}");
        }
        let of = |pod: &str| ProxyName::parse("deploy/web.shop").matches(pod, "east");
        assert_eq!(of("web-canary-7d4b9c5f6-x2x4z.shop"), None, "another Deployment");
        assert_eq!(of("web-0.shop"), None, "a StatefulSet");
    }
}
