//! 0440 to 0449: ServiceExports, ServiceImports and what Strait writes for them.

use super::code::Code;

codes! {
    /// Its exports are left out.
    SET_NAME_MISSING = "STR0440", "the cluster has no valid name in the cluster set",
        "Annotate its Secret: strait.dev/clusterset-id: NAME, a DNS label, or two labels with a dot.", "\
Multi-cluster services name a cluster by a DNS label or by two labels with a dot. The name is the cluster
ID, unless the annotation strait.dev/clusterset-id of the cluster's Secret gives another one. Strait ignores
the exports of a cluster without a valid name. If two clusters have the same name, Strait ignores the
exports of the younger one. Other features of the cluster are not affected.";

    /// An object without Strait's label.
    IMPORT_FOREIGN = "STR0441", "a ServiceImport or its Service belongs to another controller",
        "Nothing, if that controller should write it. Otherwise delete the object, and Strait creates its own.", "\
The cluster has a ServiceImport with this name that Strait did not write: it lacks the label
app.kubernetes.io/managed-by: strait, its label strait.dev/clusterset names another set, or another object
controls it. Strait reads its addresses and does not change it. With adopt: status in the policy file Strait
also writes status.clusters of such objects. If the message names a Service, that Service has the name of
the derived Service and is not Strait's: it is neither changed nor deleted, and the import has no address.";

    /// Imports that vanish after they are written.
    IMPORTS_CONTESTED = "STR0442", "another controller deletes ServiceImports of the cluster",
        "Let one controller write them: set clusters.ID.mcs.imports to off in the policy file, or stop the other one.", "\
A ServiceImport that Strait wrote was deleted, and deleted again within a minute after Strait restored it. A
second implementation of the multi-cluster services API, for example Cilium's, deletes imports that its own
mesh does not export. Strait therefore writes no further imports into this cluster until its policy changes
or the process restarts.";

    /// 403 for a write.
    IMPORT_RIGHT_MISSING = "STR0443", "the credential may not write the objects of an import",
        "Grant the rights: strait cluster add CONTEXT --mcs-imports full (chart strait-member: reader.mcsImports)", "\
For an import Strait needs create, patch and delete of serviceimports and services, patch of
serviceimports/status, and in the mode full (or to delete slices after it) create, patch and delete of
endpointslices. The cluster's API server refused a request with 403. Strait tries again after 10 minutes.
Proxies are unaffected: their endpoints do not depend on these objects.";

    /// 404 of the group.
    IMPORT_VERSION_MISSING = "STR0444", "the cluster does not serve the multi-cluster services API",
        "Install the CustomResourceDefinitions of sigs.k8s.io/mcs-api in the cluster.", "\
The API server has neither multicluster.x-k8s.io/v1beta1 nor v1alpha1, or Strait may not list ServiceImports
and ServiceExports there. Strait writes nothing there, and treats the exports of the cluster as unknown: it
deletes no import because of missing exports. Strait looks for the API every two minutes.";

    /// An import that no known cluster exports.
    IMPORT_KEPT = "STR0445", "a ServiceImport stays because the state of an exporting cluster is unknown",
        "Restore the contact to the named cluster, or remove its Secret if the cluster is gone:
strait cluster list, strait cluster remove ID", "\
No known cluster exports the service, but a cluster that exported it has not been read since the start of
Strait, cannot be read, or has objects that cannot be decoded. Strait does not treat a missing response as
an empty one: the import and its address stay until the cluster responds or is removed.";

    /// Many deletions at once.
    IMPORT_DELETES_HELD = "STR0446", "the deletion of many ServiceImports is delayed",
        "Nothing, if the services were unexported on purpose. Otherwise restore the ServiceExports now.", "\
More than half of the imports of a cluster, and at least 20, would be deleted at once. Strait waits for 30
s, and then deletes the imports that no cluster exports. massWithdrawal in the policy file sets the limits.
The metric strait_mcs_deletes_held shows the number of delayed deletions.";

    /// 409 for an apply.
    IMPORT_CONFLICT = "STR0447", "another controller owns fields of an object that Strait applies",
        "See the managers of the object: kubectl -n NAMESPACE get KIND NAME --show-managed-fields -o yaml
Then remove the field from the other manager's object.", "\
Strait writes with server-side apply as the field manager strait and never takes fields from other managers.
The API server reported that another manager set a field to a different value. Strait leaves the object
unchanged and tries again after 10 minutes.";

    /// No Service, a Service of type ExternalName, or the API server of the cluster.
    EXPORT_INVALID = "STR0448", "a ServiceExport is not valid",
        "Create a Service of the same namespace and name, or delete the ServiceExport.", "\
A ServiceExport exports the Service of the same namespace and name in its cluster. It has no effect if the
mesh has no such Service in this cluster, if the Service is of type ExternalName, or if it is the Service
default/kubernetes of the API server. The condition Valid of the ServiceExport states the reason. Exports of
other clusters are not affected.";

    /// An edited import, derived Service or slice.
    IMPORT_CHANGED = "STR0449", "another client changed an object that Strait wrote for an import",
        "Nothing, if the message disappears within seconds. Otherwise find the client, and stop it:
kubectl -n NAMESPACE get KIND NAME --show-managed-fields -o yaml", "\
Strait owns the ServiceImports, derived Services and EndpointSlices that it writes. It compares the ports,
the type, the selector, the addresses and the other fields of their specifications with the exports, and
restores them within seconds. If another client changes the object again, Strait restores it at most 3 times
in succession, and then every 10 minutes. Until then the import does not have the ports or endpoints of the
exports. To change them, change the Service in the exporting cluster.";

    /// `serviceScopeConfigs` in a mesh config.
    SCOPES_IGNORED = "STR0450", "the mesh config has serviceScopeConfigs, which have no effect",
        "Set sharing.istioGlobal: honour in the policy file; 'strait policy test FILE' lists what changes.", "\
serviceScopeConfigs selects the services that Istio's ambient mode shares with other clusters, and keeps all
others local. Applied to sidecars, it would remove all remote endpoints of the others. Strait therefore
ignores it unless the policy file says otherwise. The message states how many services would become local.";

    /// 403 or 404 for `dnsendpoints`.
    DNS_NOT_WRITTEN = "STR0451", "DNS records cannot be written as DNSEndpoint objects",
        "Install the CustomResourceDefinition DNSEndpoint of external-dns, and grant the right
(chart value dns.namespace).", "\
With --dns-endpoints, Strait writes DNSEndpoint objects (externaldns.k8s.io/v1alpha1) into a namespace of the
config cluster. The API server does not have the kind or the namespace, or the account may not list, create,
patch and delete the objects. Existing records stay. Strait tries again every 30 s.";

    /// Objects of imports after `--mcs-imports off`.
    IMPORTS_LEFT = "STR0452", "ServiceImports of the cluster are no longer updated",
        "To delete them and their Services and EndpointSlices: strait cluster mcs-purge ID CONTEXT
To update them again: set --mcs-imports or clusters.ID.mcs.imports to names or full.", "\
Strait wrote ServiceImports into the cluster, and --mcs-imports or the policy file has turned imports off
since. Their names, addresses and endpoints stay, but no longer follow the exports: pods without sidecars may
connect to pods that no longer exist. Proxies are unaffected.";

    /// 4xx for an object of an import, other than a conflict or a missing right.
    IMPORT_REFUSED = "STR0453", "the API server refuses an object of an import",
        "The message names what refuses the object: raise this ResourceQuota, or change this policy or webhook.", "\
An admission plug-in, a policy or a webhook of the cluster refuses the ServiceImport, its derived Service or
an EndpointSlice, or the object is not valid there. The message is that of the API server. Other imports are
not affected. Strait tries again after 5 s, and then in growing intervals of up to 320 s.";

    /// Slices of Kubernetes' own controller for a derived Service.
    IMPORT_SLICES = "STR0454", "EndpointSlices of Kubernetes belong to the Service of an import",
        "Delete them with the command in the message. Find the client that set the selector:
kubectl -n NAMESPACE get service NAME --show-managed-fields -o yaml", "\
Another client set a selector on the derived Service of an import. Strait removes the selector, but the
EndpointSlices that Kubernetes' controller wrote for it stay: pods without sidecars still connect to the pods
that the selector matched. They belong to another controller, so Strait does not delete them.";
}
