//! Decides when to dial which address of the hub, and which connections to close.
//!
//! Pure. Each replica of the hub needs a connection. One address may lead to several replicas, so the relay dials until it
//! has seen all names, and closes connections to a replica that already has one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use strait_kube_client::Backoff;

use super::serve::HubReplica;

/// The pauses after an attempt without a connection.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// The pauses between attempts to reach a further replica.
const SEARCH: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
/// How long a surplus connection stays open, so that load balancers that count connections select another replica.
const SURPLUS_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of connections to one replica. The hub accepts four from all relays of a member.
const PER_REPLICA_MAX: usize = 2;

/// The number of a connection, increasing.
pub(super) type ConnectionId = u64;

/// The connections of a relay, and the addresses that it dials.
#[derive(Debug)]
pub(super) struct HubConnections {
    hubs: Vec<HubState>,
    open: BTreeMap<ConnectionId, OpenHubConnection>,
    last: ConnectionId,
    search: Backoff,
    search_at: Option<Instant>,
    /// The address that the next search uses.
    next_hub: usize,
    /// The number of replicas in the latest hello. The hub sends another one when the number changes.
    replicas: usize,
}

#[derive(Debug)]
struct HubState {
    backoff: Backoff,
    /// No attempt before this time.
    dial_at: Option<Instant>,
}

/// A connection, from the attempt to its end.
#[derive(Debug)]
struct OpenHubConnection {
    hub: usize,
    since: Instant,
    /// `None` before the first hello.
    replica: Option<HubReplica>,
    /// Whether it was dialled with an earlier certificate.
    is_outdated: bool,
    is_closing: bool,
    /// When it was found to be one too many.
    surplus_since: Option<Instant>,
}

impl OpenHubConnection {
    /// Whether the connection or attempt stays.
    fn is_current(&self) -> bool {
        !self.is_outdated && !self.is_closing
    }
}

/// The next action.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConnectionAction {
    /// Dial this address.
    Dial { id: ConnectionId, hub: usize },
    /// Close this connection after its open requests.
    Close(ConnectionId),
}

impl HubConnections {
    /// Creates the state without connections to `hubs` addresses.
    pub(super) fn new(hubs: usize) -> Self {
        let hub = || HubState { backoff: RETRY, dial_at: None };
        Self {
            hubs: std::iter::repeat_with(hub).take(hubs).collect(),
            open: BTreeMap::new(),
            last: 0,
            search: SEARCH,
            search_at: None,
            next_hub: 0,
            replicas: 0,
        }
    }

    /// Returns the number of connections on which the hub has said hello.
    pub(super) fn ready(&self) -> usize {
        self.open.values().filter(|one| one.replica.is_some() && !one.is_closing).count()
    }

    /// Whether the hub has said hello on a connection with the present certificate.
    pub(super) fn is_accepted(&self) -> bool {
        self.current().any(|one| one.replica.is_some())
    }

    /// Records a hello. Returns whether the replica is a new one.
    pub(super) fn hello(&mut self, id: ConnectionId, replica: HubReplica) -> bool {
        let is_new = !self.names().contains(&*replica.name);
        if is_new || self.replicas != replica.count {
            (self.search, self.search_at) = (SEARCH, None);
        }
        self.replicas = replica.count;
        if let Some(connection) = self.open.get_mut(&id) {
            connection.replica = Some(replica);
        }
        is_new
    }

    /// Records that a connection or an attempt has ended. Returns whether the hub had said hello on it. `random` is in
    /// 0..1.
    pub(super) fn ended(&mut self, id: ConnectionId, now: Instant, random: f64) -> bool {
        let Some(connection) = self.open.remove(&id) else { return false };
        let had_hello = connection.replica.is_some();
        if !connection.is_closing {
            let hub = &mut self.hubs[connection.hub];
            if had_hello {
                hub.backoff.record_duration(now - connection.since);
            }
            hub.dial_at = Some(now + hub.backoff.pause(random));
        }
        had_hello
    }

    /// Records a new certificate: all connections are replaced, each after its replacement is ready.
    pub(super) fn outdate(&mut self) {
        self.open.values_mut().for_each(|one| one.is_outdated = true);
        self.hubs.iter_mut().for_each(|hub| *hub = HubState { backoff: RETRY, dial_at: None });
        (self.search, self.search_at) = (SEARCH, None);
    }

    /// Returns what to do now, and records it as done. `random` is in 0..1.
    pub(super) fn act(&mut self, now: Instant, random: f64) -> Vec<ConnectionAction> {
        let mut actions = Vec::new();
        for hub in 0..self.hubs.len() {
            let is_due = self.hubs[hub].dial_at.is_none_or(|due| due <= now);
            if !self.has_connection(hub) && is_due {
                actions.push(self.dial(hub, now));
            }
        }
        if self.needs_search() && self.search_at.is_none_or(|due| due <= now) {
            let hub = self.next_hub % self.hubs.len();
            self.next_hub = hub + 1;
            self.search_at = Some(now + self.search.pause(random));
            actions.push(self.dial(hub, now));
        }
        for id in self.closable(now) {
            if let Some(connection) = self.open.get_mut(&id) {
                connection.is_closing = true;
                actions.push(ConnectionAction::Close(id));
            }
        }
        actions
    }

    /// Returns the time of the next action without an event.
    pub(super) fn next(&self) -> Option<Instant> {
        let dials = self
            .hubs
            .iter()
            .enumerate()
            .filter_map(|(hub, state)| state.dial_at.filter(|_| !self.has_connection(hub)));
        let surplus = self.current().filter_map(|one| Some(one.surplus_since? + SURPLUS_LIMIT));
        let search = self.search_at.filter(|_| self.needs_search());
        dials.chain(surplus).chain(search).min()
    }

    fn dial(&mut self, hub: usize, now: Instant) -> ConnectionAction {
        self.last += 1;
        let connection = OpenHubConnection {
            hub,
            since: now,
            replica: None,
            is_outdated: false,
            is_closing: false,
            surplus_since: None,
        };
        self.open.insert(self.last, connection);
        ConnectionAction::Dial { id: self.last, hub }
    }

    /// The connections and attempts that stay.
    fn current(&self) -> impl Iterator<Item = &OpenHubConnection> {
        self.open.values().filter(|one| one.is_current())
    }

    /// Whether a connection to this address stays, or an attempt is pending.
    fn has_connection(&self, hub: usize) -> bool {
        self.current().any(|one| one.hub == hub)
    }

    fn names(&self) -> BTreeSet<&str> {
        self.current().filter_map(|one| Some(&*one.replica.as_ref()?.name)).collect()
    }

    /// Whether a replica has no connection, and no attempt is pending that may reach it.
    fn needs_search(&self) -> bool {
        let is_pending = self.current().any(|one| one.replica.is_none());
        let (reached, open) = (self.names().len(), self.current().count());
        !is_pending && reached > 0 && reached < self.replicas && open < 2 * self.replicas
    }

    /// Returns the connections to close now, and marks new surplus ones.
    fn closable(&mut self, now: Instant) -> Vec<ConnectionId> {
        let mut closable = Vec::new();
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let mut by_hub: BTreeMap<usize, usize> = BTreeMap::new();
        for one in self.current() {
            *by_hub.entry(one.hub).or_default() += 1;
        }
        for (id, one) in &mut self.open {
            let Some(replica) = one.replica.as_ref().filter(|_| one.is_current()) else { continue };
            let same = seen.entry(replica.name.clone()).or_default();
            *same += 1;
            let at_hub = by_hub.entry(one.hub).or_default();
            // The last connection of an address stays: it would be dialled again.
            if *same == 1 || *at_hub == 1 {
                one.surplus_since = None;
                continue;
            }
            let since = *one.surplus_since.get_or_insert(now);
            if *same > PER_REPLICA_MAX || now >= since + SURPLUS_LIMIT {
                closable.push(*id);
                *at_hub -= 1;
            }
        }
        // A connection with an earlier certificate ends when its replica has a connection with the present one.
        let is_replaced = |one: &OpenHubConnection| {
            let name = one.replica.as_ref().map(|replica| &*replica.name);
            one.is_outdated && !one.is_closing && name.is_none_or(|name| seen.contains_key(name))
        };
        closable.extend(self.open.iter().filter(|(_, one)| is_replaced(one)).map(|(id, _)| *id));
        closable
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionAction::{Close, Dial};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn replica(name: &str, count: usize) -> HubReplica {
        HubReplica { name: name.to_owned(), count }
    }

    /// Dials whenever a search is due, and assigns names in this order. Returns the state and the time.
    fn reached(names: &[&str], count: usize) -> (HubConnections, Instant) {
        let (mut connections, mut now) = (HubConnections::new(1), Instant::now());
        for (at, name) in names.iter().enumerate() {
            let id = at as u64 + 1;
            assert_eq!(connections.act(now, 0.5), [Dial { id, hub: 0 }], "{name}");
            connections.hello(id, replica(name, count));
            now = connections.search_at.filter(|_| connections.needs_search()).unwrap_or(now);
        }
        (connections, now)
    }

    #[test]
    fn address_is_dialled_until_all_replicas_are_reached() {
        let (mut connections, now) = reached(&["a", "a", "b", "c"], 3);
        assert_eq!(connections.act(now, 0.5), []);
        let due = connections.next().expect("the surplus connection");
        assert_eq!(connections.act(due, 0.5), [Close(2)]);
        assert!(!connections.ended(2, due, 0.5) || connections.ready() == 3);
        assert_eq!((connections.act(due, 0.5), connections.next()), (vec![], None));
    }

    #[test]
    fn further_hello_with_more_replicas_starts_a_search() {
        let (mut connections, now) = reached(&["a", "b"], 2);
        assert_eq!((connections.act(now, 0.5), connections.next()), (vec![], None));
        // The older connection has the newest number.
        assert!(!connections.hello(1, replica("a", 3)));
        assert_eq!(connections.act(now, 0.5), [Dial { id: 3, hub: 0 }]);
        assert!(connections.hello(3, replica("c", 3)));
        assert_eq!((connections.act(now, 0.5), connections.next()), (vec![], None));
    }

    #[test]
    fn fewer_replicas_end_the_search() {
        let (mut connections, now) = reached(&["a"], 2);
        connections.hello(1, replica("a", 1));
        assert_eq!((connections.act(now, 0.5), connections.next()), (vec![], None));
    }

    #[test]
    fn surplus_connection_closes_after_30_seconds() {
        let (mut connections, now) = reached(&["a", "a", "b"], 2);
        assert_eq!(connections.act(now, 0.5), []);
        assert_eq!(connections.act(now + 29 * SECOND, 0.5), []);
        assert_eq!(connections.act(now + 30 * SECOND, 0.5), [Close(2)]);
    }

    #[test]
    fn one_replica_has_at_most_two_connections() {
        let (mut connections, now) = reached(&["a", "a", "a"], 3);
        assert_eq!(connections.act(now, 0.5)[..1], [Dial { id: 4, hub: 0 }]);
        assert!(connections.open[&3].is_closing);
    }

    #[test]
    fn single_replica_needs_one_connection() {
        let (mut connections, now) = reached(&["a"], 1);
        assert_eq!((connections.act(now, 0.5), connections.next()), (vec![], None));
    }

    #[test]
    fn each_address_has_a_connection() {
        let (mut connections, now) = (HubConnections::new(2), Instant::now());
        let both = [Dial { id: 1, hub: 0 }, Dial { id: 2, hub: 1 }];
        assert_eq!(connections.act(now, 0.5), both);
        for id in [1, 2] {
            connections.hello(id, replica("a", 1));
        }
        assert_eq!((connections.act(now, 0.5), connections.next()), (vec![], None));
    }

    #[test]
    fn failed_attempts_are_repeated_with_growing_pauses_of_at_most_30_seconds() {
        let (mut connections, mut now) = (HubConnections::new(1), Instant::now());
        let mut pauses = Vec::new();
        for id in 1..=10 {
            assert_eq!(connections.act(now, 0.5), [Dial { id, hub: 0 }]);
            assert!(!connections.ended(id, now, 0.5));
            let next = connections.next().expect("another attempt");
            pauses.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(pauses[..4], [500, 1000, 2000, 4000]);
        assert_eq!(pauses[8..], [30_000, 30_000]);
    }

    #[test]
    fn lost_connection_is_replaced_after_a_short_pause() {
        let (mut connections, now) = reached(&["a"], 1);
        let later = now + 3600 * SECOND;
        assert!(connections.ended(1, later, 0.5));
        assert_eq!(connections.act(later, 0.5), []);
        assert_eq!(connections.next(), Some(later + SECOND / 2));
        assert_eq!(connections.act(later + SECOND / 2, 0.5), [Dial { id: 2, hub: 0 }]);
    }

    #[test]
    fn connection_of_an_earlier_certificate_closes_after_its_replacement_is_ready() {
        let (mut connections, now) = reached(&["a", "b"], 2);
        connections.outdate();
        assert_eq!(connections.act(now, 0.5), [Dial { id: 3, hub: 0 }]);
        connections.hello(3, replica("b", 2));
        assert_eq!(connections.act(now, 0.5), [Dial { id: 4, hub: 0 }, Close(2)]);
        connections.hello(4, replica("a", 2));
        assert_eq!(connections.act(now, 0.5), [Close(1)]);
        assert_eq!(connections.ready(), 2);
    }
}
