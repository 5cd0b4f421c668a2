// Generated: BLESS=1 cargo test --workspace --test integration generated_pages

/** The responses by path. */
export interface Responses {
  "/api/login-code": LoginCode;
  "/debug/access": AccessSnapshot;
  "/debug/addresses": Array<ClusterAddresses>;
  "/debug/certificates": CertificateStatus;
  "/debug/clusters": Array<Cluster>;
  "/debug/codes": Record<string, CodeMeaning>;
  "/debug/config": Array<ObjectStatus>;
  "/debug/config/reach": Array<PolicyReach>;
  "/debug/diff": MeshDiff;
  "/debug/endpoints": Array<ServiceEndpoint>;
  "/debug/events": Array<ChangeEvent>;
  "/debug/explain": Explanation;
  "/debug/explain/import": ImportExplanation;
  "/debug/explain/policy": PolicyExplanation;
  "/debug/explain/route": RouteExplanation;
  "/debug/history": Array<HistoryRow>;
  "/debug/hold": HoldStatus;
  "/debug/mesh": Mesh;
  "/debug/networks": Array<Network>;
  "/debug/policy": Policy;
  "/debug/proxies": Array<Proxy>;
  "/debug/push": Push;
  "/debug/relays": Array<RelayRow>;
  "/debug/replicas": Replicas;
  "/debug/rollout": Rollout;
  "/debug/services": Array<Service>;
  "/debug/sources": Array<Source>;
  "/debug/summary": Summary;
  "/debug/traffic": MeasuredTraffic;
}

/** The response to a request; `any` if the path has a query. */
export type ResponseTo<P extends string> = P extends keyof Responses ? Responses[P] : any;

/** The verdict about a request. */
export type Access = "allow" | "deny" | (string & {});

/** The inputs of access decisions: the policies, the workloads that they select, and the names that they refer to. */
export interface AccessSnapshot {
  /** The active access policies; for an invalid policy, its last valid version. */
  objects: Array<any>;
  /** How policies are treated that are invalid and have no valid version. */
  policyErrors: PolicyErrors;
  /** The reachable providers. The value states whether the provider only handles HTTP requests. */
  providers: Record<string, boolean>;
  /** Namespace whose policies apply to the whole mesh. */
  rootNamespace: string;
  /** Trust domain of the mesh, followed by its aliases. */
  trustDomains: Array<string>;
  /** The known workloads. */
  workloads: Array<SnapshotWorkload>;
}

/** The connections of the admin port. */
export interface AdminConnections {
  /** Number of idle connections that were closed in favor of new ones. */
  crowdedOut: number;
  /** Maximum number of connections. */
  most: number;
  /** Number of open connections. */
  open: number;
  /** Number of refused connections. */
  refused: number;
}

/** Proxies that would receive the same changes. */
export interface AffectedProxies {
  /** Encoded size of all resources of one proxy, in bytes. */
  bytes: BeforeAfter;
  /** The streams of the proxies. */
  proxies: Array<StreamName>;
  /** Number of resources of one proxy. */
  resources: BeforeAfter;
  /** The changes by the short name of the resource type, for example `cds`. */
  types: Record<string, TypeChanges>;
}

/** A provider that is called for a request. */
export interface AskedProvider {
  /** Name of the provider in `extensionProviders`. */
  provider: string;
  /** The rule that calls the provider. */
  rule: string;
}

/** The CA of the mesh. */
export interface Authority {
  /** Whether that is soon: a problem, unless the certificate is a root. */
  endsSoon: boolean;
  /** When the CA's certificate expires. */
  expires: string;
  /** Fingerprints of the roots that the CA's certificates chain to. */
  roots: Array<string>;
}

/** A root of the CA. */
export interface AuthorityRoot {
  /** Whether times before the start are assumed, because no record of them exists. */
  assumed: boolean;
  /** When the root expires. */
  ends: string;
  /** Fingerprint of the root. */
  fingerprint: string;
  /** The parts of the mesh that are not known to have the root. */
  lacks: Array<RootLack>;
  /** When the last certificate below the root expires; null if that is unknown. */
  lastCertificateEnds: string | null;
  /** When the root was added; null if that is unknown. */
  since: string | null;
  /** The next step for the root. */
  step: string;
  /** Subject of the root. */
  subject: string;
}

/** A number now and after the change. */
export interface BeforeAfter {
  /** The number after the change. */
  after: number;
  /** The current number. */
  before: number;
}

/** Why a newer certificate is not in use. */
export interface CertificateProblem {
  /** Code of the problem. */
  code: string;
  /** The problem in words. */
  message: string;
  /** When it began. */
  since: string;
}

/** The serving certificate, the CA, and the replacement of the CA's root. */
export interface CertificateStatus {
  /** The CA of the mesh; null if this control plane signs no certificates. */
  authority: Authority | null;
  /** The dedicated CAs of members. */
  members: Array<MemberAuthority>;
  /** Why a newer certificate is not in use; null without a problem. */
  problem: CertificateProblem | null;
  /** The roots of the CA and the progress of a root's replacement. */
  rotation: RootRotation;
  /** The certificate of the control plane's server. */
  serving: ServingCertificate;
}

/** An object that caused a change. */
export interface ChangeCause {
  /** ID of the object's cluster; empty for objects of the mesh. */
  cluster: string;
  /** Kind of the object. */
  kind: string;
  /** Name of the object; empty if the cause is no single object. */
  name: string;
  /** Namespace of the object; empty without a namespace. */
  namespace: string;
}

/** A change of the mesh. */
export interface ChangeEvent {
  /** Number of proxies that have acknowledged the change. */
  acknowledged: number;
  /** When the control plane received the change. */
  at: string;
  /** The first object that caused the change; null if it is unknown. */
  cause: ChangeCause | null;
  /** The effect in words. */
  effect: string;
  /** Names of the replicas that did not respond. Absent if empty. */
  missingReplicas?: Array<string>;
  /** Number of causes that are not listed. */
  moreCauses: number;
  /** Time from the reception to the last response of a proxy, in milliseconds. */
  ms: number;
  /** Further objects that caused the change. */
  otherCauses: Array<ChangeCause>;
  /** Number of proxies that were sent the change. */
  proxies: number;
  /** Time from the reception to the publication, in milliseconds. */
  publishedMs: number;
  /** The rejections, as far as they are stored. Absent in the list of changes. */
  refusals?: Array<ProxyRefusal> | null;
  /** Number of proxies that rejected the change. */
  refused: number;
  /** Node IDs of proxies that rejected the change, as far as they are stored. */
  refusedBy: Array<string>;
  /** The replica whose number the change has. Absent if the number is that of the responding replica. */
  replica?: string | null;
  /** The replicas that applied the change. Absent if there is only one replica. */
  replicas?: Array<string>;
  /** Whether the change is from before the start of the process. */
  restored: boolean;
  /** Number of the change. */
  seq: number;
  /** The stored part of the delivery to each proxy. Absent in the list of changes. */
  steps?: Array<ProxyDelivery> | null;
  /** The version of the mesh that contains the change. */
  version: number;
  /** Time that the change waited for others, in milliseconds. */
  waitedMs: number;
  /** Number of proxies that have not responded yet. */
  waiting: number;
}

/** The effects of hypothetical objects. */
export interface ChangePreview {
  /** The proxies that would receive other resources. Proxies with the same changes form a group. */
  affected: Array<AffectedProxies>;
  /** Names of the replicas that did not respond. Absent if empty. */
  missingReplicas?: Array<string>;
  /** Number of proxies that were not compared, because of the time limit. */
  notLookedAt: number;
  /** The objects. */
  objects: Array<PreviewedObject>;
  /** Number of proxies that would receive no other resources. */
  unaffected: number;
}

/** A field that differs. */
export interface ChangedField {
  /** New value as JSON, at most 300 characters; null if the field is removed. */
  after: string | null;
  /** Previous value as JSON, at most 300 characters; null if the field is new. */
  before: string | null;
  /** Path of the field: `virtual_hosts[web.shop:80].routes[0].route.timeout`. */
  path: string;
}

/** A resource with another content. */
export interface ChangedResource {
  /** The first 50 fields that differ. Absent unless the request asks for them. */
  fields?: Array<ChangedField> | null;
  /** Name of the resource. */
  name: string;
}

/** A member cluster, or a data key of a Secret that does not define one. */
export interface Cluster {
  /** The credential that is used to read the cluster; null if none is used. */
  credential: ClusterCredential | null;
  /** Number of endpoints. */
  endpoints: number;
  /** The cluster ID, or a data key of the Secret that is not a valid ID. */
  id: string;
  /** Claims to another network than the Secret's; they have no effect. Absent if empty. */
  ignoredClaims?: Array<IgnoredClaim>;
  /** The ServiceExports that are not valid, by reason. Absent if empty. */
  invalidExports?: Array<InvalidExports>;
  /** The state in the inventory that the member comes from; null without an inventory. */
  inventory: Inventory | null;
  /** Whether a newer kubeconfig of the Secret is refused while the previous one is in use. Absent if false. */
  kubeconfigRefused?: boolean;
  /** When the API server last sent a valid response; null if it never did. */
  lastContact: string | null;
  /** The ServiceImports that Strait no longer updates, because imports are off for the cluster; absent if there are none. */
  leftoverImports?: LeftoverImports | null;
  /** The permissions that the reader lacks, for example `list pods`. */
  missingRights: Array<string>;
  /** The mode that an operator requests, `drain` or `pause`; absent by default. */
  mode?: string | null;
  /** The network of the cluster; null if it is unknown. */
  network: string | null;
  /** The time of the next attempt to connect, in the state `misbehaving`. Absent otherwise. */
  nextAttempt?: string | null;
  /** Number of Kubernetes objects. */
  objects: number;
  /** The kinds that the API server no longer lists or watches while it answers other requests. Absent if empty. */
  outdated?: Array<OutdatedKind>;
  /** The namespaces to which the reader of the cluster is limited. Absent if it reads the whole cluster. */
  readNamespaces?: Array<string>;
  /** The reason of the state, with an error code if one applies. */
  reason: string | null;
  /** Number of full lists after the first. */
  relists: number;
  /** Its state in each replica of the control plane. Absent if all have the same state. */
  replicas?: Array<ClusterInReplica>;
  /** How far the mesh's root certificates are distributed in the cluster; absent if the control plane does not write them. */
  roots?: ClusterRoots | null;
  /** The clusters whose pods use the same addresses in the same network. Absent if empty. */
  sameAddresses?: Array<SameAddresses>;
  /** The clusters whose nodes assign pod addresses from the same ranges in the same network. Absent if empty. */
  sameRanges?: Array<SameRange>;
  /** The Secret, `namespace/name`; null for the config cluster. */
  secret: string | null;
  /** Number of services. */
  services: number;
  /** When the state began; absent for `live`. */
  since?: string | null;
  /** The source of the Secret: `system` for the system namespace, otherwise the name of a source in the operator file; null for the config cluster. */
  source: string | null;
  /** The kind of the object that defines the member; null for the config cluster. */
  sourceKind: string | null;
  /** The state. */
  state: ClusterState;
  /** The trust domain of the cluster's workloads. */
  trustDomain: string;
  /** The namespaces among them that may not be read, although others are. Their last known objects stay. Absent if empty. */
  unreadNamespaces?: Array<UnreadNamespace>;
  /** How the API server is reached: `direct`, `relay`, or the name of a proxy. */
  via: string;
  /** Why its endpoints are withdrawn from all proxies, if the policy file withdraws them because the cluster has been unreachable for too long. Absent otherwise. */
  withdrawn?: string | null;
  /** Number of endpoints that at least one connected proxy's network cannot receive. */
  withheld: number;
  /** Number of withheld endpoints by the code of the reason. Absent if empty. */
  withheldBy?: Record<string, number>;
}

/** The addresses of one cluster's pods in a network. */
export interface ClusterAddresses {
  /** Number of addresses. */
  addresses: number;
  /** ID of the cluster. */
  cluster: string;
  /** Ranges that contain all addresses, at most 64. */
  ranges: Array<string>;
  /** The addresses of the query that pods of the cluster have. */
  same: Array<string>;
}

/** The credential with which the control plane reads a cluster. */
export interface ClusterCredential {
  /** Whether it expires so soon that an operator should act. */
  endsSoon: boolean;
  /** When it expires; null if that is unknown. */
  expires: string | null;
  /** The identity of the operator file that provides it; null for a credential of the Secret. */
  identity: string | null;
  /** How it authenticates. */
  kind: CredentialKind;
  /** Why a newer credential is not used, or why the identity provides none; null without an error. */
  lastError: string | null;
  /** Its user, according to the API server; null if it is unknown. */
  principal: string | null;
  /** When the control plane requests the next one; null if it does not. */
  refreshAt: string | null;
  /** Whether the control plane renews it itself. */
  renewsItself: boolean;
}

/** State of a cluster in one replica of the control plane. */
export interface ClusterInReplica {
  /** The reason of the state; null if there is none. */
  reason: string | null;
  /** Name of the replica. */
  replica: string;
  /** The state; null if the replica does not have the cluster. */
  state: ClusterState | null;
}

/** How far the mesh's root certificates are distributed in a cluster. */
export interface ClusterRoots {
  /** Number of these namespaces that have the mesh's roots in `strait-ca-root-cert`. */
  beside: number;
  /** Number of namespaces that have all roots in the ConfigMap `istio-ca-root-cert`. */
  current: number;
  /** The missing permission to write the roots. Absent if none is missing. */
  denied?: string | null;
  /** Number of namespaces with another writer's roots in that ConfigMap. */
  foreign: number;
  /** The first of these namespaces. Absent if empty. */
  foreignFirst?: Array<string>;
  /** Number of namespaces that need the roots. */
  namespaces: number;
  /** The state of the ClusterTrustBundle with the roots: `current`, `foreign` (of another controller), `denied` or `rejected`. Absent if the API server does not have the kind. */
  trustBundle?: string | null;
}

/** The state of a member cluster. docs/reference/cluster-states.md explains each state. */
export type ClusterState = "syncing" | "live" | "stale" | "timeout" | "authFailed" | "tlsFailed" | "rejected" | "conflict" | "identityChanged" | "misbehaving" | "quarantined" | "paused" | "draining" | "restored" | (string & {});

/** The traffic from one cluster to another, or within one cluster. */
export interface ClusterTraffic {
  /** ID of the servers' cluster. */
  destination: string;
  /** Number of failed requests per second: status 5xx, or no response. */
  errors: number;
  /** 95th percentile of the duration of requests in milliseconds; null without a value. */
  p95: number | null;
  /** Number of requests per second. */
  rate: number;
  /** ID of the clients' cluster. */
  source: string;
}

/** The meaning of an error code. */
export interface CodeMeaning {
  /** How to fix the problem. Lines that begin with spaces are commands. */
  next: string;
  /** The problem in one sentence. */
  title: string;
}

/** How a credential authenticates. */
export type CredentialKind = "token" | "clientCertificate" | "basic" | "identity" | "relay" | (string & {});

/** The response of a proxy to a change. */
export type DeliveryAnswer = "acknowledged" | "refused" | "waiting" | (string & {});

/** Use of file descriptors. */
export interface Descriptors {
  /** Number of times that no descriptor was left. */
  exhausted: number;
  /** Time since that last happened, in seconds; null if it never did. */
  exhaustedSecondsAgo: number | null;
  /** Maximum number of descriptors; null if it is unknown. */
  limit: number | null;
  /** Approximate number of descriptors that the members need. */
  neededByMembers: number | null;
  /** Number of open descriptors; null if it is unknown. */
  open: number | null;
}

/** The health of an endpoint. */
export type EndpointHealth = "healthy" | "unhealthy" | "draining" | "terminating" | (string & {});

/** The endpoints of one cluster in one network. */
export interface ExplainedCluster {
  /** The other reasons, the most frequent first. Absent if empty. */
  alsoWithheld?: Array<WithheldEndpoints>;
  /** ID of the cluster. */
  cluster: string;
  /** Code of that reason. */
  code: string | null;
  /** Name of the network. */
  network: string;
  /** The preference in words. Absent without a preference. */
  preference?: string | null;
  /** Priority that a policy preference assigns; higher numbers are used if lower ones are not sufficient. Absent without a preference. */
  priority?: number | null;
  /** Number of ready endpoints. */
  ready: number;
  /** The most frequent reason for withheld endpoints, with their number; null without one. */
  reason: string | null;
  /** Number of endpoints that are sent, directly or through gateways. */
  sent: number;
  /** Number of all endpoints. */
  total: number;
  /** `direct`, or the addresses of the gateways; null if no endpoint is sent. */
  via: string | null;
}

/** The decision about one endpoint. */
export interface ExplainedEndpoint {
  /** The other address of a dual-stack pod. Absent for other pods. */
  additional?: string | null;
  /** Address of the endpoint. */
  address: string;
  /** ID of the cluster. */
  cluster: string;
  /** Name of the network. */
  network: string;
  /** Port of the endpoint. */
  port: number;
  /** Envoy's priority of a sent endpoint; 0 is the highest. Absent unless the service prefers near endpoints. */
  priority?: number | null;
  /** The steps of the decision in order, up to the step that withheld the endpoint. */
  steps: Array<ExplainedStep>;
  /** The decision. */
  verdict: Verdict;
  /** Addresses of the gateways to the endpoint. Absent if empty. */
  via?: Array<string>;
}

/** The ServiceImport of an explanation. */
export interface ExplainedImport {
  /** Its addresses; empty if it is headless. */
  ips: Array<string>;
  /** Whether Strait writes it. */
  ours: boolean;
  /** Whether it exists. */
  present: boolean;
  /** Whether its condition `Ready` is true. */
  ready: boolean;
  /** Number of EndpointSlices that Strait writes for it. */
  slices: number;
  /** `strait`; null if another controller writes it, or none. */
  writer: string | null;
}

/** One step of a decision. */
export interface ExplainedStep {
  /** The decisive fact. */
  detail: string;
  /** Whether the step passed. */
  ok: boolean;
  /** Name of the step. */
  step: string;
}

/** The decisions about the endpoints of one port of a service, for one proxy. */
export interface Explanation {
  /** A line for each cluster and network with endpoints. */
  clusters: Array<ExplainedCluster>;
  /** All endpoints. */
  endpoints: Array<ExplainedEndpoint>;
  /** How the proxy finds endpoints. Absent unless it finds them itself. */
  found?: string | null;
  /** Host name of the service. */
  hostname: string;
  /** Notes about other definitions of the service that have no effect. Absent if empty. */
  notes?: Array<string>;
  /** Port of the service. */
  port: number;
  /** Node ID of the proxy. */
  proxy: string;
}

/** A field in which an export differs from the export that decides. */
export interface ExportConflict {
  /** Name of the field. */
  field: string;
  /** The cluster whose value applies. */
  winner: string | null;
}

/** A configuration object that cannot be read. */
export interface FaultyObject {
  /** Code of the first problem; null without a code. */
  code: string | null;
  /** Kind of the object. */
  kind: string;
  /** Name of the object. */
  name: string;
  /** Namespace of the object. */
  namespace: string;
  /** Path of the part with the first problem. */
  path: string;
  /** `refused` or `partly`. */
  state: string;
  /** The first problem in words. */
  text: string;
}

/** Configuration objects that cannot be read, and access policies with unreadable parts. */
export interface FaultyObjects {
  /** Number of such objects. */
  faulty: number;
  /** The first 40 of them. */
  first: Array<FaultyObject>;
}

/** Limits on the bytes that objects of other namespaces add to a proxy. */
export interface ForeignBytes {
  /** Limit for the objects of one other namespace, in bytes. */
  namespace: number;
  /** Limit for the objects of all other namespaces, in bytes. */
  total: number;
}

/** The configuration that all proxies keep. */
export interface HeldConfiguration {
  /** Name of the requester, as given by the requester. */
  by: string;
  /** Whether a rollout that stopped holds it. */
  byRollout: boolean;
  /** ID of the configuration. */
  configuration: string;
  /** Whether the hold survives a restart, which requires a state directory. */
  durable: boolean;
  /** Reason of the request. */
  reason: string;
  /** Whether all replicas hold it. */
  replicas: HoldReplicas;
  /** When the hold began. */
  since: string;
  /** Number of changes that wait for the release. */
  waiting: number;
  /** Whether the hold includes access policies. */
  withAccess: boolean;
}

/** An object that a hold or a release would change. */
export interface HeldObject {
  /** The action on the object: `new`, `changed` or `removed`. */
  action: ObjectAction;
  /** Kind of the object. */
  kind: string;
  /** Name of the object. */
  name: string;
  /** Namespace of the object. */
  namespace: string;
}

/** A version of the mesh, and its number of changes. */
export interface HistoryRow {
  /** When the version was recorded. */
  at: string;
  /** ID of the configuration; null if it is no longer stored. */
  configuration: string | null;
  /** Number of added endpoints. */
  endpointsAdded: number;
  /** Number of removed endpoints. */
  endpointsRemoved: number;
  /** Why the changes are unknown; null if they are known. */
  gap: string | null;
  /** Number of changed networks. */
  networks: number;
  /** Number of changed objects. */
  objects: number;
  /** The replica that recorded the version. Absent if that is the responding replica. */
  replica?: string | null;
  /** Whether the version is from before the start of the process. */
  restored: boolean;
  /** Number of changed services. */
  services: number;
  /** Number of changed settings. */
  settings: number;
  /** The version; each process starts at 1. */
  version: number;
}

/** The effects of a hold or a release. */
export interface HoldPreview {
  /** The proxies that would receive other resources. Proxies with the same changes form a group. */
  affected: Array<AffectedProxies>;
  /** ID of the configuration that would be active. */
  configuration: string;
  /** ID of the active configuration. */
  inForce: string;
  /** Whether the mesh config would change. */
  meshConfig: boolean;
  /** Whether the mesh networks would change. */
  meshNetworks: boolean;
  /** Names of the replicas that did not respond. Absent if empty. */
  missingReplicas?: Array<string>;
  /** Number of proxies that were not compared, because of the time limit. */
  notLookedAt: number;
  /** The objects that would change. */
  objects: Array<HeldObject>;
  /** Number of proxies that would receive no other resources. */
  unaffected: number;
  /** Whether the hold includes access policies. */
  withAccess: boolean;
}

/** Whether the other replicas hold the same configuration. */
export interface HoldReplicas {
  /** Why the other replicas may not hold it. Absent unless the state is `thisOne`. */
  fact?: string | null;
  /** Which replicas hold it. */
  state: HoldSharing;
}

/** The replicas that hold a configuration. */
export type HoldSharing = "alone" | "all" | "thisOne" | (string & {});

/** The held configuration, the changes that wait, and the configurations that can be held. */
export interface HoldStatus {
  /** The stored configurations to which an operator can return. */
  configurations: Array<RetainedConfiguration>;
  /** The held configuration; null without a hold. */
  held: HeldConfiguration | null;
  /** ID of the configuration that the current objects define; null until they have been read. */
  live: string | null;
  /** Why a configuration that was held before the start is no longer held; null otherwise. */
  lost: string | null;
  /** Whether all replicas hold the same configuration. */
  replicas: HoldReplicas;
  /** The changes that take effect at the release. */
  waiting: WaitingChanges;
}

/** The memory that the streams of one identity use. */
export interface IdentityUse {
  /** Approximate memory of the streams in bytes. */
  bytes: number;
  /** Charge against the identity's budget in bytes. */
  charged: number;
  /** The SPIFFE identity. */
  identity: string;
  /** Number of subscribed names that refer to no service. */
  madeUpNames: number;
  /** Number of subscribed names of all types. */
  names: number;
  /** Number of streams. */
  streams: number;
  /** Number of streams whose pod is unknown. */
  unverified: number;
}

/** A claim to another network than the Secret of the cluster fixes. It has no effect. */
export interface IgnoredClaim {
  /** The source of the claim, for example a label of pods, with their number. */
  claim: string;
  /** The claimed network. */
  network: string;
}

/** Why a cluster has the ServiceImport of a service, or lacks it. */
export interface ImportExplanation {
  /** ID of the importing cluster. */
  cluster: string;
  /** The cluster whose export defines the fields; null if no export is valid. */
  decides: string | null;
  /** The exports of the service. */
  exports: Array<ServiceExport>;
  /** The fields of the import, each with the cluster whose export defines it. */
  fields: Array<ImportedField>;
  /** The import. */
  import: ExplainedImport;
  /** Name of the service. */
  name: string;
  /** Namespace of the service. */
  namespace: string;
  /** The steps up to the first one that fails, or all steps. */
  steps: Array<ImportStep>;
}

/** One condition for a ServiceImport. */
export interface ImportStep {
  /** Code of the reason. Absent if the step passed, or without a code. */
  code?: string | null;
  /** The decisive fact. */
  detail: string;
  /** Whether the step passed. */
  ok: boolean;
  /** Name of the step. */
  step: string;
}

/** A field of a ServiceImport. */
export interface ImportedField {
  /** The cluster whose export defines it. */
  cluster: string;
  /** Name of the field. */
  field: string;
  /** Value of the field. */
  value: string;
}

/** ServiceExports of a cluster that are not valid for one reason. */
export interface InvalidExports {
  /** Number of exports. */
  count: number;
  /** The first of them: `NAMESPACE/NAME`. */
  first: string;
  /** Why they are not valid. */
  reason: string;
}

/** The state of a member in the inventory that it comes from. */
export interface Inventory {
  /** The condition `ControlPlaneHealthy`: `True`, `False` or `Unknown`. */
  controlPlaneHealthy: string;
  /** The condition `Joined`: `True`, `False` or `Unknown`. */
  joined: string;
  /** The manager that wrote the ClusterProfile. */
  manager: string;
  /** When `ControlPlaneHealthy` last changed; null if that is unknown. */
  since: string | null;
}

/** ServiceImports of a cluster that Strait no longer updates. */
export interface LeftoverImports {
  /** Number of imports. */
  count: number;
  /** The first of them: `NAMESPACE/NAME`. */
  first: string;
}

/** A code with which a browser opens one session. */
export interface LoginCode {
  /** The code: letters and digits. */
  code: string;
  /** How long the code is valid, in seconds. */
  expiresSeconds: number;
}

/** A rule that does not decide. */
export interface LostRule {
  /** Why it does not decide. */
  reason: string;
  /** The rule. */
  rule: RouteRule;
}

/** The traffic between clusters and to services, or the reason why it cannot be read. */
export interface MeasuredTraffic {
  /** The traffic between clusters: at most 2000 rows in descending order of `rate`. Absent if it was not read. */
  clusters?: Array<ClusterTraffic> | null;
  /** Whether the server has the address of a Prometheus. */
  enabled: boolean;
  /** Why the traffic cannot be read. Absent without a problem. */
  problem?: string | null;
  /** The traffic to services: at most 2000 rows in descending order of `rate`. Absent if it was not read. */
  services?: Array<ServiceTraffic> | null;
  /** Length of the window of the rates, for example `2m`. Absent if traffic is not enabled. */
  window?: string | null;
}

/** The dedicated CA of one member. */
export interface MemberAuthority {
  /** The folder with its files. */
  directory: string;
  /** Whether that is soon: a problem, unless the certificate is a root. */
  endsSoon: boolean;
  /** When the CA's certificate expires; null if the CA is not usable. */
  expires: string | null;
  /** Number of certificates that it has signed since the start. */
  issued: number;
  /** ID of the member. */
  member: string;
  /** Why its newest files are not in use; null without a problem. */
  problem: CertificateProblem | null;
  /** Fingerprints of the roots that the CA's certificates chain to. */
  roots: Array<string>;
}

/** The status of the operator file of member sources. */
export interface MemberSourcesFile {
  /** Why the file is not active; null if it is active or missing. */
  problem: string | null;
  /** The identities whose tokens are valid at any member. */
  replayable: Array<string>;
  /** The sources that cannot be read, each with the reason. */
  sources: Array<string>;
  /** The fields that this release validates and does not use. */
  unused: Array<string>;
}

/** Use of memory. */
export interface Memory {
  /** Number of streams that had to wait for memory. */
  deferred: number;
  /** Memory limit in bytes; 0 without a limit. */
  limit: number;
  /** How scarce memory is. */
  pressure: string;
  /** Number of streams that were closed to free memory. */
  shed: number;
  /** Used memory in bytes; null if it was not measured yet. */
  used: number | null;
}

/** The mesh config that applies, its problems, and the fields without effect. */
export interface Mesh {
  /** Default providers that have no effect. */
  defaultProvidersWithoutEffect: Array<ProviderFault>;
  /** Fields that have no effect. */
  fieldsWithoutEffect: Array<string>;
  /** The held configuration; null without a hold. */
  held: HeldConfiguration | null;
  /** Why a configuration that was held before the start is no longer held; null otherwise. */
  holdLost: string | null;
  /** All problems in one text; null without a problem. */
  problem: string | null;
  /** The parts of the mesh config and the mesh networks that are not active. */
  problems: Array<Problem>;
  /** The clusters that mesh networks name by `fromRegistry` and that are not members. Absent if empty. */
  unknownRegistries?: Array<UnknownCluster>;
  [setting: string]: any;
}

/** The changes from an earlier moment to now. */
export interface MeshDiff {
  /** The earlier version. */
  from: VersionTime;
  /** Changed gateways, as text, by network. */
  networks: Record<string, SetChange>;
  /** Changed configuration objects by `KIND.GROUP NAMESPACE/NAME`, with the digests of their content. */
  objects: Record<string, ValueChange>;
  /** Changed services by host name. */
  services: Record<string, ServiceChange>;
  /** Changed settings by field of the mesh config, and modes of members as `cluster ID`. */
  settings: Record<string, ValueChange>;
  /** The current version. */
  to: VersionTime;
}

/** Status of the mesh config. */
export interface MeshInShort {
  /** The held configuration; null without a hold. */
  held: HeldConfiguration | null;
  /** Why a configuration that was held before the start is no longer held; null otherwise. */
  holdLost: string | null;
  /** The parts of the mesh config and the mesh networks that are not active. */
  problems: Array<Problem>;
}

/** A network with its clusters and gateways. */
export interface Network {
  /** IDs of the clusters with workloads in the network. */
  clusters: Array<string>;
  /** The addresses at which other networks reach this network. */
  gateways: Array<NetworkGateway>;
  /** Name of the network. */
  network: string;
  /** Gateways that cannot be used yet. Absent if empty. */
  pending?: Array<PendingGateway>;
}

/** One address of a network's gateway. */
export interface NetworkGateway {
  /** The IP address. */
  address: string;
  /** The cluster of the gateway; empty if the mesh networks define it. */
  cluster: string;
  /** Whether the gateway was probed and does not respond. Absent if false. */
  dead?: boolean;
  /** The port for HBONE; 0 if it has none. */
  hbonePort: number;
  /** The DNS name from which the address was resolved. Absent without a DNS name. */
  hostname?: string | null;
  /** The port for mTLS. */
  port: number;
  /** The object that defines the gateway, for example `service istio-system/gateway`. */
  source: string;
  /** How long the resolved address is valid, in seconds. Absent without a DNS name. */
  ttlSeconds?: number | null;
}

/** The action on an object of a preview. */
export type ObjectAction = "new" | "changed" | "same" | "removed" | "left" | (string & {});

/** The name of a configuration object. */
export interface ObjectName {
  /** Kind of the object. */
  kind: string;
  /** Name of the object. */
  name: string;
  /** Namespace of the object. */
  namespace: string;
}

/** A finding about a part of an object. */
export interface ObjectReason {
  /** Code of the finding. */
  code: string;
  /** Path of the part, for example `spec.http[1].route[0]`; empty for the whole object. */
  path: string;
  /** The finding and its consequence. */
  text: string;
}

/** Summary of an object's status. */
export type ObjectState = "inForce" | "partly" | "shadowed" | "refused" | "unused" | "waiting" | (string & {});

/** The status of a configuration object. */
export interface ObjectStatus {
  /** The cluster to whose proxies the object applies. Absent if it applies to the whole mesh. */
  cluster?: string | null;
  /** Kind of the object. */
  kind: string;
  /** Name of the object. */
  name: string;
  /** Namespace of the object. */
  namespace: string;
  /** Number of proxies whose configuration the object affects. */
  proxies: number;
  /** Reasons for the status, and warnings. */
  reasons: Array<ObjectReason>;
  /** Summary of the status. */
  state: ObjectState;
  /** The store that contains the object: `config` for the stores that apply to the whole mesh, `member` for the store of `cluster`. */
  store: string;
}

/** A kind of objects that an API server no longer updates. */
export interface OutdatedKind {
  /** Plural name of the kind, for example `endpointslices`. */
  kind: string;
  /** When updates stopped. */
  since: string;
}

/** A gateway that cannot be used yet. */
export interface PendingGateway {
  /** The cluster of the gateway; empty if the mesh networks define it. */
  cluster: string;
  /** The code of the reason. */
  code: string | null;
  /** Why it cannot be used. */
  reason: string;
  /** The object that defines the gateway. */
  source: string;
}

/** The status of the policy file, and its rules. */
export interface Policy {
  /** Limits on the bytes that objects of other namespaces add to a proxy. */
  foreignBytes: ForeignBytes;
  /** Whether objects may apply to services of other namespaces. */
  foreignHosts: string;
  /** The namespaces whose gateways are network gateways; null if any namespace may have them. */
  gatewayNamespaces: Array<string> | null;
  /** The operator file of member sources. */
  members: MemberSourcesFile;
  /** The preferences among clusters, in words. */
  preferences: Array<string>;
  /** Why the policy file is not active; null if it is active or missing. */
  problem: string | null;
  /** Whether gateways of other networks are ejected after errors. */
  remoteEjection: string;
  /** The mesh's root namespace; null until the mesh config has been read. */
  rootNamespace: string | null;
  /** Which settings decide whether a service is shared. */
  sharing: PolicySharing;
  /** The rules for clusters that are not members. */
  unknownClusters: Array<UnknownCluster>;
  /** The objects that apply to the whole mesh because they do not name namespaces. */
  visibleByDefault: Array<ObjectName>;
}

/** The delivery of a change of a policy. */
export interface PolicyDelivery {
  /** Number of proxies that have acknowledged the change. */
  acknowledged: number;
  /** When the control plane received the change. */
  at: string;
  /** Number of proxies that were sent the change. */
  proxies: number;
  /** Number of proxies that rejected the change. */
  refused: number;
  /** Number of the change, as in `/debug/events`. */
  seq: number;
  /** Number of proxies that have not responded yet. */
  waiting: number;
}

/** How policies are treated that are invalid and have no valid version. */
export type PolicyErrors = "narrow" | "strict" | (string & {});

/** How a workload handles a request. */
export interface PolicyExplanation {
  /** The verdict if the request is HTTP. */
  http: PolicyVerdict;
  /** Whether the workload's labels are confirmed by its cluster. If not, every restricting policy applies to it. */
  labelsKnown: boolean;
  /** The mTLS mode of the port. */
  mode: PortMode;
  /** Notes about rules whose decision is uncertain, because the caller connects through a gateway. */
  notes: Array<ObjectReason>;
  /** The verdict for a connection whose content is unknown. */
  tcp: PolicyVerdict;
}

/** A field of a rule. */
export interface PolicyField {
  /** Whether the field matches the request. */
  ok: boolean;
  /** Path of the field in the policy. */
  path: string;
}

/** Status of the policy file. */
export interface PolicyInShort {
  /** Why the policy file is not active; null if it is active or missing. */
  problem: string | null;
}

/** A proxy to which a policy applies. */
export interface PolicyProxy {
  /** Whether it has acknowledged the current policies. */
  acknowledged: boolean;
  /** ID of the proxy's cluster. */
  cluster: string;
  /** The rejection of its listeners; null without one. */
  nack: Rejection | null;
  /** Node ID of the proxy. */
  proxy: string;
}

/** The proxies to which an access policy applies, and whether they have acknowledged it. */
export interface PolicyReach {
  /** Number of proxies that have acknowledged the current policies. */
  acknowledged: number;
  /** Number of connected proxies in the mesh. */
  connected: number;
  /** Kind of the policy. */
  kind: string;
  /** Name of the policy. */
  name: string;
  /** Namespace of the policy. */
  namespace: string;
  /** Number of proxies to which the policy applies. */
  proxies: number;
  /** These proxies. */
  rows: Array<PolicyProxy>;
  /** The delivery of the policy's last change and of the steps of its transition. Absent for policies other than PeerAuthentications. */
  told?: Array<PolicyDelivery> | null;
  /** The transition to another mTLS mode. Absent without a transition. */
  transition?: PolicyTransition | null;
}

/** A rule of a policy. */
export interface PolicyRule {
  /** The fields of the rule. */
  fields: Array<PolicyField>;
  /** Whether the rule matches the request. */
  matches: boolean;
  /** Name of the rule. */
  rule: string;
}

/** Which settings decide whether a service is shared. */
export interface PolicySharing {
  /** `honour` if Istio's label and `serviceScopeConfigs` have an effect, otherwise `ignore`. */
  istioGlobal: string;
}

/** A policy that applies to a workload. */
export interface PolicyStep {
  /** The action of its rules: `ALLOW`, `DENY` and others. */
  action: string;
  /** Whether the policy only logs its decision. */
  dryRun: boolean;
  /** Name of the policy. */
  policy: string;
  /** The provider that decides; null if the policy decides itself. */
  provider: string | null;
  /** Why the provider cannot be called; null if it can. */
  providerFault: string | null;
  /** The rules of the policy. */
  rules: Array<PolicyRule>;
  /** Why the policy applies to the workload. */
  selected: string;
}

/** The transition to another mTLS mode. */
export interface PolicyTransition {
  /** Number of proxies whose ports still accept the previous mode. */
  proxies: number;
  /** When the last of them stops accepting it. */
  until: string;
}

/** A verdict with the rules that lead to it. */
export interface PolicyVerdict {
  /** The providers that are called first. Each must allow the request. Their decisions are unknown, so `verdict` assumes that they allow it. */
  asks: Array<AskedProvider>;
  /** The policy or rule that decides, or the reason why none does. */
  by: string;
  /** Every policy that applies to the workload, in order, with its rules. */
  steps: Array<PolicyStep>;
  /** The verdict. */
  verdict: Access;
}

/** The mTLS mode of a port. */
export interface PortMode {
  /** The policy that sets the mode, or a description of the transition; empty if no policy sets it. */
  by: string;
  /** The transition during which the port accepts both plain text and mTLS. Absent without a transition. */
  transition?: PortModeTransition | null;
  /** `STRICT`, `PERMISSIVE` or `DISABLE`. */
  value: string;
}

/** The mode that a port changes to. */
export interface PortModeTransition {
  /** The policy that sets the new mode. */
  by: string;
  /** `STRICT` or `DISABLE`. */
  to: string;
  /** When the transition ends. */
  until: string;
}

/** A hypothetical object. */
export interface PreviewedObject {
  /** The action on the object. */
  action: ObjectAction;
  /** Kind of the object. */
  kind: string;
  /** Name of the object. */
  name: string;
  /** Namespace of the object. */
  namespace: string;
  /** Number of proxies whose configuration the object affects. */
  proxies: number;
  /** Reasons for the status, and warnings. */
  reasons: Array<ObjectReason>;
  /** Summary of the status; null if it was not computed. */
  state: ObjectState | null;
}

/** A certificate with which `strait check --traffic` sends requests. */
export interface ProbeIdentity {
  /** The certificate and its intermediates, in PEM. */
  certChain: string;
  /** When the certificate expires. */
  expires: string;
  /** The SPIFFE identity of the certificate. */
  identity: string;
  /** The root certificates of the mesh, in PEM. */
  rootCert: string;
}

/** A problem with its code. */
export interface Problem {
  /** Code of the problem. */
  code: string;
  /** The problem in words. */
  text: string;
}

/** A default provider that has no effect. */
export interface ProviderFault {
  /** Path of the field. */
  path: string;
  /** Why it has no effect. */
  text: string;
}

/** A stream of a connected proxy. */
export interface Proxy {
  /** ID of the proxy's cluster. */
  cluster: string;
  /** When the stream was opened. */
  connectedAt: string;
  /** The node ID, `TYPE~ADDRESS~NAME.NAMESPACE~DOMAIN`. */
  id: string;
  /** The SPIFFE identity of the proxy. */
  identity: string;
  /** How traffic reaches the sidecar. Absent for the default, a redirect. */
  interception?: string | null;
  /** The unique name of the stream. */
  key: string;
  /** How the proxy authenticated: `certificate` or `token`. */
  knownBy: string | null;
  /** When that certificate or token expires. */
  knownUntil: string;
  /** The security patches that the proxy's release lacks and access policies need. Absent if empty. */
  missingPatches?: Array<string>;
  /** The proxy's namespace. */
  namespace: string;
  /** Name of the proxy's network. */
  network: string;
  /** The form of the xDS protocol: `delta` or `sotw`. */
  protocol: string;
  /** The replica to which the proxy is connected. Absent if there is only one replica. */
  replica?: string | null;
  /** The secrets to which the proxy subscribes. Absent if empty. */
  secrets?: Array<ProxySecret>;
  /** The kind of client: `sidecar`, `router` and others. */
  type: string;
  /** The delivery of each subscribed resource type, by the type's short name, for example `cds`. */
  types: Record<string, TypeDelivery>;
  /** Whether the proxy's cluster has reported its pod. */
  verified: boolean;
  /** The release of Envoy, or of the gRPC library. */
  version: string;
  /** How virtual hosts are delivered. Absent if they are part of route configurations. */
  virtualHosts?: VirtualHostSubscription | null;
}

/** Numbers of the connected proxies of one cluster. */
export interface ProxyCounts {
  /** Number of streams. */
  connected: number;
  /** Number of streams that rejected the last response of a type. */
  refusing: number;
  /** Number of streams that have not acknowledged the last response of a type. */
  waiting: number;
}

/** The delivery of a change to one proxy. */
export interface ProxyDelivery {
  /** The response of the proxy. */
  answer: DeliveryAnswer;
  /** Time from the reception of the change to the proxy's response, in milliseconds; null if the proxy has not responded. */
  answeredMs: number | null;
  /** ID of the proxy's cluster. */
  cluster: string;
  /** Node ID of the proxy. */
  proxy: string;
  /** Time from the reception of the change to the response that contains it, in milliseconds; null if it was not sent. */
  sentMs: number | null;
}

/** Numbers of connected proxies, and the first rejections. */
export interface ProxyNumbers {
  /** The numbers by cluster. */
  clusters: Record<string, ProxyCounts>;
  /** Number of streams. */
  connected: number;
  /** The first 40 streams that rejected a response. */
  refusals: Array<RefusingProxy>;
  /** Number of streams that rejected the last response of a type. */
  refusing: number;
  /** Number of streams that have not acknowledged the last response of a type. */
  waiting: number;
}

/** The error text of a proxy that rejected a change. */
export interface ProxyRefusal {
  /** The error text. */
  error: string;
  /** Node ID of the proxy. */
  proxy: string;
}

/** A secret to which a proxy subscribes. */
export interface ProxySecret {
  /** Code of the reason; null if the secret is sent. */
  code: string | null;
  /** Name of the secret. */
  name: string;
  /** Why the secret is not sent; null if it is sent. */
  reason: string | null;
  /** Whether the secret was sent. */
  sent: boolean;
}

/** The amount of configuration of some proxies. */
export interface ProxyTotals {
  /** Encoded size of all resources of one proxy, in bytes. */
  bytes: BeforeAfter;
  /** The streams of the proxies. */
  proxies: Array<StreamName>;
  /** Number of resources of one proxy. */
  resources: BeforeAfter;
}

/** The version of the mesh, and figures of the event loop, memory and streams. */
export interface Push {
  /** The connections of the admin port. */
  adminConnections: AdminConnections;
  /** Age of the version in seconds; null before the first version. */
  ageSeconds: number | null;
  /** Problems of the proxies' connections. */
  connectionProblems: Array<Problem>;
  /** Longest time that a change of a definition waits for others, in milliseconds. */
  definitionsWaitMaxMilliseconds: number;
  /** Use of file descriptors. */
  descriptors: Descriptors;
  /** Longest time that a change of endpoints waits for others, in milliseconds. */
  endpointsWaitMaxMilliseconds: number;
  /** Number of events that the event loop has received. */
  events: number;
  /** The held configuration; null without a hold. */
  held: HeldConfiguration | null;
  /** The identities that use most memory. */
  identities: Array<IdentityUse>;
  /** Budget of one identity in bytes; 0 without a limit. */
  identityBudget: number;
  /** Time to build and announce the last version, in microseconds. */
  lastVersionMicroseconds: number;
  /** Use of memory. */
  memory: Memory;
  /** Number of streams that were closed because their identity exceeded its budget. */
  overBudget: number;
  /** When the version was published; null before the first version. */
  published: string | null;
  /** Number of events that waited at the last check. */
  queued: number;
  /** The roots of the CA, and how close their expiry is. */
  roots: Array<RootLife>;
  /** Number of streams that the last version woke. */
  streamsWoken: number;
  /** Number of wake-ups by all versions since the start. */
  streamsWokenTotal: number;
  /** The version of the mesh; 0 before the first version. */
  version: number;
}

/** A stream that rejected a response. */
export interface RefusingProxy {
  /** ID of the proxy's cluster. */
  cluster: string;
  /** Node ID of the proxy. */
  id: string;
  /** The unique name of the stream. */
  key: string;
  /** The error texts by resource type. */
  types: Record<string, string>;
}

/** A rejection (NACK) of a response. */
export interface Rejection {
  /** The error text of the proxy. */
  error: string;
  /** The resources that the proxy named; empty if it named none. */
  resources: Array<string>;
}

/** A connection of a relay. */
export interface RelayRow {
  /** Whether requests to the member use the connection. */
  active: boolean;
  /** ID of the member. */
  cluster: string;
  /** The forms in which the relay sends objects, as media types. */
  forms: Array<string>;
  /** The pod or host of the relay. */
  instance: string;
  /** The address and port of the relay. */
  remote: string;
  /** When the connection was opened. */
  since: string;
  /** Number of open requests. */
  streams: number;
  /** The version of the relay. */
  version: string;
}

/** One replica of the control plane. */
export interface Replica {
  /** Address `IP:PORT`. Absent for the replica that responds. */
  address?: string | null;
  /** The lasting differences between its state and that of the replica that received the request. Absent if empty. */
  differences?: Array<Problem>;
  /** Name of the replica. */
  name: string;
  /** Why it did not respond. Absent if it did. */
  reason?: string | null;
  /** Whether it responds. */
  state: ReplicaState;
}

/** Whether a replica responds. */
export type ReplicaState = "self" | "answers" | "missing" | (string & {});

/** The replicas of the control plane. */
export interface Replicas {
  /** Names of the replicas that did not respond. Absent if empty. */
  missingReplicas?: Array<string>;
  /** Why the other replicas are unknown; null if they are known. */
  problem: string | null;
  /** All known replicas. */
  replicas: Array<Replica>;
}

/** A stored configuration to which an operator can return. */
export interface RetainedConfiguration {
  /** When it became active. */
  at: string;
  /** ID of the configuration. */
  id: string;
  /** Whether it is active. */
  inForce: boolean;
  /** Number of objects. */
  objects: number;
  /** The first version of the mesh with this configuration. */
  version: number;
}

/** The plan for rollouts, the running rollout, and the last stopped one. */
export interface Rollout {
  /** Number of completed rollouts since the start. */
  completedTotal: number;
  /** Why the configuration of all proxies before the start is unknown; null if it is known. */
  lost: string | null;
  /** The plan; null if changes are sent to all proxies at once. */
  plan: RolloutPlan | null;
  /** The rollout in progress; null without one. */
  running: RunningRollout | null;
  /** The stopped rollout, while its previous configuration is held; null without one. */
  stopped: StoppedRollout | null;
  /** Number of stopped rollouts since the start. */
  stoppedTotal: number;
}

/** The rollout in `/debug/summary`. */
export interface RolloutInShort {
  /** Why the configuration of all proxies before the start is unknown; null if it is known. */
  lost: string | null;
  /** The rollout in progress; null without one. */
  running: RunningRolloutInShort | null;
}

/** The limits at which a rollout stops. */
export interface RolloutLimits {
  /** Percentage of a service's endpoints that proxies with the change may lose; 100 disables the check. */
  lostEndpoints: number;
  /** Number of proxies that reject the change; at least 1. */
  refused: number;
}

/** The steps of a rollout. */
export interface RolloutPlan {
  /** Duration of each step except the last, in seconds. */
  everySeconds: number;
  /** Percentage of proxies at each step, from 1 to 100, ascending. */
  steps: Array<number>;
  /** The limits at which a rollout stops. */
  stopAt: RolloutLimits;
}

/** A part of the mesh that is not known to have a root. */
export interface RootLack {
  /** The facts about the part. */
  fact: string;
  /** The part: a cluster, proxies, and others. */
  who: string;
}

/** A root of the CA, and how close its expiry is. */
export interface RootLife {
  /** When the root expires. */
  ends: string;
  /** How close that is. */
  stage: RootStage;
  /** Subject of the root. */
  subject: string;
}

/** The roots of the CA and the progress of a root's replacement. */
export interface RootRotation {
  /** The next action of the operator; null if none is due. */
  next: string | null;
  /** Number of the phase, from 1 to 4; null without a replacement. */
  number: number | null;
  /** The phase; null without a replacement. */
  phase: RotationPhase | null;
  /** The roots. */
  roots: Array<AuthorityRoot>;
}

/** How close the expiry of a root is. */
export type RootStage = "fine" | "fifth" | "month" | "week" | "ended" | (string & {});

/** A phase in the replacement of a root. */
export type RotationPhase = "distribute" | "sign" | "wait" | "withdraw" | (string & {});

/** An upstream cluster that receives requests. */
export interface RouteDestination {
  /** Name of the upstream cluster. */
  cluster: string;
  /** Number of endpoints that the proxy receives; null if it discovers them itself. */
  endpoints: number | null;
  /** Whether the proxy has this upstream cluster. */
  known: boolean;
  /** The subset of the service; empty for the entire service. */
  subset: string;
  /** Weight of the destination. */
  weight: number;
}

/** The path of a request through a proxy's configuration. */
export interface RouteExplanation {
  /** The status of the proxy's own response. Absent if the request is forwarded. */
  answer?: number | null;
  /** The filter chain of the listener; null without one. */
  chain: string | null;
  /** The destinations of the request. */
  destinations: Array<RouteDestination>;
  /** The listener that accepts the connection; null without one. */
  listener: string | null;
  /** The URL of a redirect. Absent without a redirect. */
  location?: string | null;
  /** Rules and objects that do not apply, with reasons. */
  lost: Array<LostRule>;
  /** Other effects: faults, mirrors, path changes. */
  notes: Array<string>;
  /** The outcome in words. */
  outcome: string;
  /** Node ID of the proxy. */
  proxy: string;
  /** The route configuration; null without one. */
  route: string | null;
  /** The deciding rule; null if no rule applies. */
  rule: RouteRule | null;
  /** The virtual host in the route configuration; null without one. */
  virtualHost: string | null;
}

/** A rule of an object. */
export interface RouteRule {
  /** The cluster that owns the object. Absent if it applies to the whole mesh. */
  cluster?: string | null;
  /** Index of the rule in the object, from 0; null for the entire object. */
  index: number | null;
  /** Kind of the object. */
  kind: string;
  /** Name of the object. */
  name: string;
  /** Namespace of the object. */
  namespace: string;
  /** Path of the rule in the object, for example `spec.http[0]`. */
  path: string;
  /** The rule that delegates to this one. Absent without a delegation. */
  via?: RouteRule | null;
}

/** A rollout in progress. */
export interface RunningRollout {
  /** When the rollout began. */
  begun: string;
  /** ID of the new configuration. */
  configuration: string;
  /** Number of connected proxies. */
  connected: number;
  /** Whether the rollout survives a restart. */
  durable: boolean;
  /** When the next step is due; null before the first step. */
  nextStepAt: string | null;
  /** Time until the next step in seconds; null before the first step, and if it is due. */
  nextStepInSeconds: number | null;
  /** Percentage of proxies that receive the new configuration; 0 before the first step. */
  percent: number;
  /** The plan of this rollout. */
  plan: RolloutPlan;
  /** Number of connected proxies that receive the new configuration. */
  proxies: number;
  /** The first 100 rejections. */
  refusals: Array<ProxyRefusal>;
  /** Number of proxies that rejected the new configuration. */
  refused: number;
  /** ID of the previous configuration. */
  settled: string;
  /** Node IDs of the first 100 proxies that receive the new configuration. */
  share: Array<string>;
  /** Number of the current step, from 1; null before the first step. */
  step: number | null;
  /** When the current step began; null before the first step. */
  stepSince: string | null;
}

/** A rollout in progress, without its plan and its proxies. */
export interface RunningRolloutInShort {
  /** ID of the new configuration. */
  configuration: string;
  /** Number of connected proxies. */
  connected: number;
  /** Percentage of proxies that receive the new configuration; 0 before the first step. */
  percent: number;
  /** Number of connected proxies that receive the new configuration. */
  proxies: number;
  /** Number of proxies that rejected the new configuration. */
  refused: number;
  /** Number of the current step, from 1; null before the first step. */
  step: number | null;
}

/** Addresses that pods of the cluster share with pods of another cluster in one network. */
export interface SameAddresses {
  /** Number of shared addresses. */
  addresses: number;
  /** The other cluster. */
  cluster: string;
  /** The first shared address. */
  first: string;
  /** The cluster whose pods proxies of other clusters receive for these addresses. */
  holder: string;
  /** The network. */
  network: string;
}

/** A range from which nodes of two clusters assign pod addresses in one network. */
export interface SameRange {
  /** The other cluster. */
  cluster: string;
  /** The network. */
  network: string;
  /** The smaller of two overlapping ranges, for example `10.0.0.0/16`. */
  range: string;
}

/** A suggested Sidecar for a namespace, and its effects. */
export interface ScopePreview {
  /** Names of the replicas that did not respond. Absent if empty. */
  missingReplicas?: Array<string>;
  /** Number of proxies that were not compared, because of the time limit. */
  notLookedAt: number;
  /** The Sidecar. Its form is that of Istio's Sidecar. */
  object: any;
  /** Names of other Sidecars of the namespace, which apply to some workloads instead. */
  others: Array<string>;
  /** The proxies of the namespace. Proxies with the same totals form a group. */
  proxies: Array<ProxyTotals>;
  /** Whether a Sidecar of that name exists. */
  replaces: boolean;
  /** Called names that match nothing in the mesh. */
  unknown: Array<string>;
}

/** A service, merged over all clusters that define it. */
export interface Service {
  /** Address ranges that route to the service, of a ServiceEntry. Absent if empty. */
  addressRanges?: Array<string>;
  /** The virtual IP addresses by cluster. */
  clusterVIPs: Record<string, Array<string>>;
  /** IDs of the clusters that define the service. */
  clusters: Array<string>;
  /** The fields on which clusters disagree. */
  conflicts: Array<ServiceConflict>;
  /** The ServiceExports of the service: the one that decides, the other valid ones, then the refused ones. */
  exports: Array<ServiceExport>;
  /** The addresses at which clients outside of the cluster reach the service, by cluster. */
  externalAddresses: Record<string, Array<string>>;
  /** The host name. */
  hostname: string;
  /** The ServiceImports of the service, by cluster. */
  imports: Array<ServiceImport>;
  /** The namespace. */
  namespace: string;
  /** The ports: the union of the ports in all clusters. */
  ports: Array<ServicePort>;
  /** How proxies find the endpoints: `ClientSideLB`, `Headless`, `Alias HOST` and others. */
  resolution: string;
  /** The SPIFFE identities of the service's workloads. */
  serviceAccounts: Array<string>;
  /** Whether each cluster of Kubernetes that has the service shares it. */
  sharing: Array<ServiceSharing>;
  /** The preference among endpoints. Absent without a preference. */
  trafficDistribution?: string | null;
}

/** The changes of one service. */
export interface ServiceChange {
  /** Its ports, addresses, clusters and so on. Absent if they are equal. */
  definition?: ValueChange | null;
  /** Changed endpoints, as text, by cluster. Absent if they are equal. */
  endpoints?: Record<string, SetChange>;
}

/** A field on which clusters disagree. */
export interface ServiceConflict {
  /** Name of the field. */
  field: string;
  /** The clusters with a different value, sorted. */
  losers: Array<string>;
  /** The cluster whose value applies. */
  winner: string;
}

/** An endpoint of a service. */
export interface ServiceEndpoint {
  /** The IP address, a DNS name that proxies resolve, or the path of a socket. */
  address: string;
  /** ID of the cluster; empty for endpoints of a ServiceEntry. */
  cluster: string;
  /** The health as proxies see it. */
  health: EndpointHealth;
  /** The locality `region/zone/subzone`; empty if it is unknown. */
  locality: string;
  /** Name of the network. */
  network: string;
  /** The target port. */
  port: number;
  /** Name of the service port. */
  portName: string;
  /** The source of the endpoint: `Kubernetes`, `External` and others. */
  provider: string;
  /** The service account; null if it is unknown. */
  serviceAccount: string | null;
  /** The service ports that route to this port; null without any. */
  servicePorts: Array<number> | null;
  /** Whether it accepts mTLS of the mesh: `istio` or `disabled`. */
  tlsMode: string;
  /** The load-balancing weight, at least 1. */
  weight: number;
  /** Why no proxy receives it, if the policy file withdraws the endpoints of its cluster because the cluster has been unreachable for too long. Absent otherwise. */
  withdrawn?: string | null;
  /** The workload `name.namespace`; null if it is unknown. */
  workload: string | null;
}

/** A ServiceExport. */
export interface ServiceExport {
  /** ID of the exporting cluster. */
  cluster: string;
  /** The fields in which it differs from the export that decides. */
  conflicts: Array<ExportConflict>;
  /** When it was created; null if that is unknown, and for refused exports. */
  created: string | null;
  /** Whether it defines the fields of the merged service. */
  decides: boolean;
  /** Name of the cluster in the cluster set; null for refused exports. */
  name: string | null;
  /** Why it is refused. Absent for valid exports. */
  reason?: string | null;
  /** Whether it is part of the merged service. */
  valid: boolean;
}

/** The ServiceImport of one cluster. */
export interface ServiceImport {
  /** ID of the cluster. */
  cluster: string;
  /** Code of the reason; null without a code. */
  code: string | null;
  /** The addresses of the import; empty if it is headless. */
  ips: Array<string>;
  /** Whether Strait writes it. */
  ours: boolean;
  /** Whether it exists. */
  present: boolean;
  /** Whether its condition `Ready` is true. */
  ready: boolean;
  /** Why it is missing, not ready, or no longer updated; null otherwise. */
  reason: string | null;
  /** Number of EndpointSlices that Strait writes for it. */
  slices: number;
  /** Networks whose endpoints pods without sidecars of the cluster do not reach. */
  unreached: Array<string>;
}

/** A port of a service. */
export interface ServicePort {
  /** Name of the port. */
  name: string;
  /** Number of the port. */
  port: number;
  /** Protocol of the port, for example `HTTP` or `TCP`. */
  protocol: string;
}

/** Whether a cluster shares a service with proxies of other clusters. */
export interface ServiceSharing {
  /** ID of the cluster. */
  cluster: string;
  /** The rule that decides it. */
  rule: string;
  /** `shared` or `local`. */
  state: string;
  /** The statements of the cluster's objects, from which a policy decides. */
  statements: SharingStatements;
}

/** The traffic to a service. */
export interface ServiceTraffic {
  /** Number of failed requests per second: status 5xx, or no response. */
  errors: number;
  /** Host name of the service. */
  hostname: string;
  /** 95th percentile of the duration of requests in milliseconds; null without a value. */
  p95: number | null;
  /** Number of requests per second. */
  rate: number;
}

/** The certificate of the control plane's server. */
export interface ServingCertificate {
  /** Whether that is soon, although the certificate should have been renewed. */
  endsSoon: boolean;
  /** When it expires. */
  expires: string;
}

/** Added and removed items. A changed item is in both lists. */
export interface SetChange {
  /** Items that only the later version has. */
  added: Array<string>;
  /** Items that only the earlier version has. */
  removed: Array<string>;
}

/** The statements of a cluster's objects about sharing a service: true shares it, false keeps it local. A statement is absent if no object makes it. */
export interface SharingStatements {
  /** Whether a ServiceExport exists, if exports alone decide (`--mcs`). */
  export?: boolean | null;
  /** The label `istio.io/global` of the Service. */
  istioLabel?: boolean | null;
  /** The label `strait.dev/share` of the Service. */
  label?: boolean | null;
  /** The label `strait.dev/share` of the Service's Namespace. */
  namespaceLabel?: boolean | null;
  /** Whether `serviceScopeConfigs` of the mesh config select the service as global. */
  scope?: boolean | null;
}

/** A workload that policies may select. */
export interface SnapshotWorkload {
  /** IP addresses of the workload. */
  addresses: Array<string>;
  /** ID of the cluster. */
  cluster: string;
  /** SPIFFE ID of the workload. */
  identity: string;
  /** Labels of the workload. */
  labels: Record<string, string>;
  /** Name of the workload. */
  name: string;
  /** Namespace of the workload. */
  namespace: string;
}

/** A source of services or objects that is not a member cluster. */
export interface Source {
  /** Kinds of objects, in plural, that the API server does not have. Absent if empty. */
  absentKinds?: Array<string>;
  /** The address, without credentials. */
  address: string;
  /** Code of the reason. Absent without a code. */
  code?: string | null;
  /** Number of endpoints. */
  endpoints: number;
  /** Number of failed attempts to read the source. */
  failures: number;
  /** The kind of the source. */
  kind: SourceKind;
  /** When the source last sent a valid response; null if it never did. */
  lastContact: string | null;
  /** Name of the source. */
  name: string;
  /** Number of objects, if it is a store of objects. */
  objects: number;
  /** Why the source cannot be read, or the age of restored data. Absent without a reason. */
  reason?: string | null;
  /** Number of services. */
  services: number;
  /** The state. */
  state: SourceState;
  /** Parts of the data that are not used unchanged, as text, at most 100. */
  warnings: Array<string>;
  /** Number of endpoints that at least one connected proxy cannot receive because of networks or the policy. */
  withheld: number;
  /** The withheld endpoints by the code of the reason. Absent if empty. */
  withheldBy?: Record<string, WithheldOfSource>;
}

/** A source without its numbers and warnings, as in `/debug/summary`. */
export interface SourceInShort {
  /** Code of the reason; null without a code. */
  code: string | null;
  /** The kind of the source. */
  kind: SourceKind;
  /** Name of the source. */
  name: string;
  /** Why the source cannot be read, or the age of restored data; null without a reason. */
  reason: string | null;
  /** The state. */
  state: SourceState;
}

/** The kind of a source. */
export type SourceKind = "entries" | "consul" | "directory" | "cluster" | "mcp" | "jwks" | "state" | (string & {});

/** The state of a source. */
export type SourceState = "syncing" | "live" | "stale" | "timeout" | "restored" | (string & {});

/** A rollout that was stopped. */
export interface StoppedRollout {
  /** When it was stopped. */
  at: string;
  /** ID of the configuration held since then. */
  configuration: string;
  /** Why it was stopped. */
  reason: string;
}

/** A stream of a proxy. */
export interface StreamName {
  /** ID of the proxy's cluster. */
  cluster: string;
  /** Node ID of the proxy. */
  id: string;
  /** The unique name of the stream. */
  key: string;
}

/** The numbers of proxies, problems and objects that the map of the page shows. */
export interface Summary {
  /** The certificates. */
  certificates: CertificateStatus;
  /** Status of the mesh config. */
  mesh: MeshInShort;
  /** Names of the replicas that did not respond. Absent if empty. */
  missingReplicas?: Array<string>;
  /** Configuration objects that cannot be read. */
  objects: FaultyObjects;
  /** Status of the policy file. */
  policy: PolicyInShort;
  /** Problems of the proxies' connections and of the other replicas. */
  problems: Array<Problem>;
  /** The connected proxies. */
  proxies: ProxyNumbers;
  /** The rollout. */
  rollout: RolloutInShort;
  /** The sources other than member clusters. */
  sources: Array<SourceInShort>;
}

/** The changes to the resources of one type. */
export interface TypeChanges {
  /** Names of new resources. */
  added: Array<string>;
  /** Resources with another content. */
  changed: Array<ChangedResource>;
  /** Names of removed resources. */
  removed: Array<string>;
}

/** The delivery of one resource type to a proxy. */
export interface TypeDelivery {
  /** The last acknowledged version; null without one. */
  acked: string | null;
  /** When the proxy last acknowledged a response. */
  lastAcked: string | null;
  /** When a response was last sent. */
  lastSent: string | null;
  /** The rejection of the last response. Absent if the proxy did not reject it. */
  nack?: Rejection | null;
  /** The last sent version; null if nothing was sent. */
  sent: string | null;
}

/** A rule for a cluster that is not a member. */
export interface UnknownCluster {
  /** ID of the cluster. */
  cluster: string;
  /** The rule that names it. */
  rule: string;
}

/** A namespace of a limited reader that may not be read. */
export interface UnreadNamespace {
  /** The namespace. */
  namespace: string;
  /** The kind, and why it may not be read. */
  reason: string;
  /** When the first request was refused after the last success. */
  since: string;
}

/** A value before and after. Its form is that of the setting or definition. */
export interface ValueChange {
  /** The later value; null if it does not exist. */
  after: any;
  /** The earlier value; null if it does not exist. */
  before: any;
}

/** The decision about an endpoint. */
export type Verdict = "direct" | "gateway" | "withheld" | (string & {});

/** A version and its time. */
export interface VersionTime {
  /** When the version was recorded. */
  at: string;
  /** The version. */
  version: number;
}

/** Whether a proxy receives virtual hosts one by one. */
export interface VirtualHostSubscription {
  /** Code of the reason. Absent if it receives them one by one. */
  code?: string | null;
  /** Whether the proxy receives virtual hosts one by one. */
  oneByOne: boolean;
  /** Why it receives route configurations instead. Absent if it receives virtual hosts. */
  reason?: string | null;
}

/** The changes that take effect at the release of a held configuration. */
export interface WaitingChanges {
  /** Number of changes. */
  count: number;
  /** Whether the mesh config changes. */
  meshConfig: boolean;
  /** Whether the mesh networks change. */
  meshNetworks: boolean;
  /** The first 1,000 changed objects. */
  objects: Array<ObjectName>;
}

/** A reason for which some of a cluster's endpoints are withheld. */
export interface WithheldEndpoints {
  /** Code of the reason. */
  code: string;
  /** The reason, with the number of endpoints. */
  reason: string;
}

/** Endpoints of a source that are withheld for one reason. */
export interface WithheldOfSource {
  /** Number of endpoints. */
  endpoints: number;
  /** Services that have such endpoints, at most three, the first ones by name. */
  services: Array<string>;
}
