//! The delivery of a change to proxies: counts of all proxies, and the steps of some.
//!
//! Each stream that is woken for a change holds a [`Receipt`] and returns it with the proxy's
//! response. Most proxies are only counted. The proxy and the times of its steps are stored for the
//! first proxies that received the change, for the last ones that responded, and for all that
//! rejected it. Their memory is allocated once, and the lock is taken for one record only. Streams
//! are numerous, so they only store the moments that they know already. Durations, and which
//! response was the last, are computed on request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use strait_base::bounded::head;
use strait_model::{ClusterId, Proxy};

/// The number of proxies whose steps are stored because they received the change first.
const FIRST_MAX: usize = 32;
/// The number of other proxies whose steps are stored because they responded last.
const LAST_MAX: usize = 8;
/// The maximum number of named proxies that rejected a change.
const REFUSERS_MAX: usize = 8;
/// The maximum length of a stored error message, in bytes.
const ERROR_BYTES_MAX: usize = 1024;

/// The progress of the delivery of one change.
#[derive(Debug)]
pub struct Delivery {
    pub(super) received: Instant,
    proxies: AtomicU32,
    acknowledged: AtomicU32,
    refused: AtomicU32,
    unfollowed: AtomicU32,
    /// The time of the last response, for a change of a previous process.
    past_answer: Option<Duration>,
    /// The number of entries in `first`, so that a full list is detected without the lock.
    first: AtomicU32,
    lines: Mutex<DeliveryLines>,
    /// The sender for awaited responses, while streams are being woken.
    awaiting: Option<mpsc::WeakSender<()>>,
}

/// The data of [`DeliverySteps`], as streams record it.
#[derive(Debug, Default)]
struct DeliveryLines {
    first: Vec<ProxyLine>,
    last: VecDeque<ProxyLine>,
    refusals: Vec<DeliveryRefusal>,
}

/// The data of [`ProxySteps`], with moments instead of durations.
#[derive(Debug)]
struct ProxyLine {
    proxy: Arc<str>,
    cluster: ClusterId,
    sent: Option<Instant>,
    answered: Option<Instant>,
    answer: ProxyAnswer,
}

/// The recorded proxies of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliverySteps {
    /// The proxies that received it first, in that order.
    pub first: Vec<ProxySteps>,
    /// The other proxies that responded last, in that order.
    pub last: VecDeque<ProxySteps>,
    /// The first proxies that rejected it.
    pub refusals: Vec<DeliveryRefusal>,
}

/// The steps of one proxy for a change, with their times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySteps {
    /// Its node ID.
    pub proxy: Arc<str>,
    /// Its cluster; proxies of two clusters may have the same node ID.
    pub cluster: ClusterId,
    /// The time from the change's first event until the first resource was sent; `None` if nothing
    /// had to be sent.
    pub sent: Option<Duration>,
    /// The time from the change's first event until the proxy had responded; `None` if it has not
    /// yet, or if it is unknown.
    pub answered: Option<Duration>,
    /// The proxy's response.
    pub answer: ProxyAnswer,
}

/// The response of a proxy to the resources of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyAnswer {
    /// It has not responded yet.
    Waiting,
    /// It acknowledged all resources.
    Acknowledged,
    /// It rejected at least one resource.
    Refused,
    /// Unknown: its stream ended, or it had too many other pending changes.
    Unfollowed,
}

/// A proxy that rejected a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRefusal {
    /// Its node ID.
    pub proxy: Arc<str>,
    /// The error that it reported.
    pub error: Arc<str>,
}

/// The progress of a [`Delivery`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Streams that were woken for the change.
    pub proxies: u32,
    /// Streams that acknowledged all resources sent since, or had nothing to send.
    pub acknowledged: u32,
    /// Streams whose proxy rejected a resource.
    pub refused: u32,
    /// Streams whose result is unknown: they ended, or had too many other pending changes.
    pub unfollowed: u32,
    /// The time from the change's first event until the last response; `None` before the first
    /// response.
    pub last_answer: Option<Duration>,
}

/// Held by one stream until its proxy has responded to a change. If it is dropped without a
/// response, the result is unknown.
#[derive(Debug)]
pub struct Receipt {
    delivery: Option<Arc<Delivery>>,
    /// When the first resource was sent.
    sent: Option<Instant>,
    /// Its index in the list of first proxies.
    first: Option<u8>,
    /// Keeps the channel of awaited responses open until the receipt is used or dropped.
    _awaited: Option<mpsc::Sender<()>>,
}

impl Delivery {
    /// Creates the delivery of a change whose first event was received at `received`.
    pub fn new(received: Instant) -> Self {
        let no_counts = DeliveryCounts {
            proxies: 0,
            acknowledged: 0,
            refused: 0,
            unfollowed: 0,
            last_answer: None,
        };
        Self::past(received, no_counts, DeliverySteps::default())
    }

    /// Restores the delivery of a change of a previous process.
    pub(super) fn past(received: Instant, counts: DeliveryCounts, steps: DeliverySteps) -> Self {
        let line = |steps: ProxySteps| ProxyLine::of_steps(steps, received);
        let lines = DeliveryLines {
            first: steps.first.into_iter().map(line).collect(),
            last: steps.last.into_iter().map(line).collect(),
            refusals: steps.refusals,
        };
        Self {
            received,
            proxies: AtomicU32::new(counts.proxies),
            acknowledged: AtomicU32::new(counts.acknowledged),
            refused: AtomicU32::new(counts.refused),
            unfollowed: AtomicU32::new(counts.unfollowed),
            past_answer: counts.last_answer,
            first: AtomicU32::new(u32::try_from(lines.first.len()).unwrap_or(u32::MAX)),
            lines: Mutex::new(lines),
            awaiting: None,
        }
    }

    /// Sets the sender for [awaited](Self::awaited_receipt) receipts. Its channel closes when all
    /// of them have been used or dropped.
    #[must_use]
    pub fn awaited_by(self, sender: &mpsc::Sender<()>) -> Self {
        Self { awaiting: Some(sender.downgrade()), ..self }
    }

    /// Creates the receipt for another stream.
    pub fn receipt(self: &Arc<Self>) -> Receipt {
        self.proxies.fetch_add(1, Ordering::Relaxed);
        Receipt { delivery: Some(Arc::clone(self)), sent: None, first: None, _awaited: None }
    }

    /// Creates the receipt for another stream, whose response is awaited.
    pub fn awaited_receipt(self: &Arc<Self>) -> Receipt {
        let mut receipt = self.receipt();
        receipt._awaited = self.awaiting.as_ref().and_then(mpsc::WeakSender::upgrade);
        receipt
    }

    /// Returns the current counts.
    pub fn counts(&self) -> DeliveryCounts {
        DeliveryCounts {
            proxies: self.proxies.load(Ordering::Relaxed),
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            unfollowed: self.unfollowed.load(Ordering::Relaxed),
            last_answer: self.past_answer.or_else(|| self.last_answer()),
        }
    }

    /// Returns the time of the last response. Its proxy is always recorded: it is among the first,
    /// or among the last to respond.
    fn last_answer(&self) -> Option<Duration> {
        let lines = self.lock();
        let last = lines.first.iter().chain(&lines.last).filter_map(|line| line.answered).max();
        last.map(|last| self.after(last))
    }

    /// Returns the recorded steps of proxies.
    pub fn steps(&self) -> DeliverySteps {
        let lines = self.lock();
        let steps = |line: &ProxyLine| ProxySteps {
            proxy: Arc::clone(&line.proxy),
            cluster: line.cluster.clone(),
            sent: line.sent.map(|then| self.after(then)),
            answered: line.answered.map(|then| self.after(then)),
            answer: line.answer,
        };
        DeliverySteps {
            first: lines.first.iter().map(steps).collect(),
            last: lines.last.iter().map(steps).collect(),
            refusals: lines.refusals.clone(),
        }
    }

    /// Returns the node IDs of the first eight proxies that rejected a resource.
    pub fn refused_by(&self) -> Vec<Arc<str>> {
        self.lock().refusals.iter().map(|one| Arc::clone(&one.proxy)).collect()
    }

    /// Returns the time from the first event to `then`, in whole microseconds, at least 1.
    fn after(&self, then: Instant) -> Duration {
        let micros = then.saturating_duration_since(self.received).as_micros();
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX).max(1))
    }

    /// Adds the proxy to the list of first proxies if there is room, and returns its index.
    fn enter_first(&self, proxy: &Proxy, sent: Option<Instant>) -> Option<u8> {
        if self.first.load(Ordering::Relaxed) as usize >= FIRST_MAX {
            return None;
        }
        let mut lines = self.lock();
        let place = lines.first.len();
        if place >= FIRST_MAX {
            return None;
        }
        if place == 0 {
            // Allocate everything at once; most changes affect few proxies.
            let proxies = self.proxies.load(Ordering::Relaxed) as usize;
            lines.first.reserve_exact(proxies.clamp(1, FIRST_MAX));
        }
        lines.first.push(ProxyLine::of(proxy, sent));
        self.first.store(u32::try_from(place + 1).unwrap_or(u32::MAX), Ordering::Relaxed);
        u8::try_from(place).ok()
    }

    /// Records the response of a proxy at time `at`, in its existing record or in the list of last
    /// proxies.
    fn note(
        &self,
        receipt: &Receipt,
        proxy: &Proxy,
        at: Instant,
        answer: ProxyAnswer,
    ) -> MutexGuard<'_, DeliveryLines> {
        let first = receipt.first.or_else(|| self.enter_first(proxy, receipt.sent));
        let mut lines = self.lock();
        let line = match first {
            Some(place) => lines.first.get_mut(usize::from(place)),
            None => {
                if lines.last.len() >= LAST_MAX {
                    lines.last.pop_front();
                } else if lines.last.is_empty() {
                    lines.last.reserve_exact(LAST_MAX);
                }
                lines.last.push_back(ProxyLine::of(proxy, receipt.sent));
                lines.last.back_mut()
            }
        };
        if let Some(line) = line {
            line.answered = Some(at);
            line.answer = answer;
        }
        lines
    }

    /// A panic while the lock was held can't leave it half-changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, DeliveryLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProxyLine {
    fn of(proxy: &Proxy, sent: Option<Instant>) -> Self {
        Self {
            proxy: Arc::clone(&proxy.id),
            cluster: proxy.cluster.clone(),
            sent,
            answered: None,
            answer: ProxyAnswer::Waiting,
        }
    }

    /// Converts the durations of a change whose first event was received at `received`.
    fn of_steps(steps: ProxySteps, received: Instant) -> Self {
        let at = |after: Option<Duration>| after.and_then(|after| received.checked_add(after));
        let (sent, answered) = (at(steps.sent), at(steps.answered));
        Self { proxy: steps.proxy, cluster: steps.cluster, sent, answered, answer: steps.answer }
    }
}

impl ProxyAnswer {
    /// Returns the name of the response.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Acknowledged => "acknowledged",
            Self::Refused => "refused",
            Self::Unfollowed => "unfollowed",
        }
    }

    /// Parses the name of a response; unknown names become `Unfollowed`.
    pub(super) fn from_name(name: &str) -> Self {
        let all = [Self::Waiting, Self::Acknowledged, Self::Refused];
        all.into_iter().find(|one| one.as_str() == name).unwrap_or(Self::Unfollowed)
    }
}

impl DeliverySteps {
    /// Returns all recorded proxies: the first that received the change, then the last that
    /// responded.
    pub fn proxies(&self) -> impl Iterator<Item = &ProxySteps> {
        self.first.iter().chain(&self.last)
    }
}

impl DeliveryCounts {
    /// Returns the number of proxies that have not responded yet.
    pub fn waiting(&self) -> u32 {
        self.proxies.saturating_sub(self.acknowledged + self.refused + self.unfollowed)
    }
}

impl Receipt {
    /// Records that the first resource of the change was sent to the proxy.
    pub fn sent(&mut self, proxy: &Proxy, at: Instant) {
        if self.sent.is_none()
            && let Some(delivery) = &self.delivery
        {
            self.sent = Some(at);
            self.first = delivery.enter_first(proxy, self.sent);
        }
    }

    /// Records that the proxy acknowledged all resources of the change.
    pub fn acknowledge(mut self, proxy: &Proxy, at: Instant) {
        if let Some(delivery) = self.delivery.take() {
            drop(delivery.note(&self, proxy, at, ProxyAnswer::Acknowledged));
            delivery.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the proxy rejected a resource, with its error message.
    pub fn refuse(mut self, proxy: &Proxy, at: Instant, error: &str) {
        if let Some(delivery) = self.delivery.take() {
            let mut lines = delivery.note(&self, proxy, at, ProxyAnswer::Refused);
            if lines.refusals.len() < REFUSERS_MAX {
                let error = cut(error).into();
                lines.refusals.push(DeliveryRefusal { proxy: Arc::clone(&proxy.id), error });
            }
            drop(lines);
            delivery.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            if let Some(place) = self.first
                && let Some(line) = delivery.lock().first.get_mut(usize::from(place))
            {
                line.answer = ProxyAnswer::Unfollowed;
            }
            delivery.unfollowed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Truncates an error message of a proxy.
fn cut(text: &str) -> &str {
    head(text, ERROR_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::testing::sidecar;

    fn names(steps: impl IntoIterator<Item = ProxySteps>) -> Vec<String> {
        let name = |one: ProxySteps| one.proxy.split('~').nth(2).unwrap_or_default().to_owned();
        steps.into_iter().map(name).collect()
    }

    #[test]
    fn proxies_are_counted_by_their_response() {
        let delivery = Arc::new(Delivery::new(Instant::now()));
        let [first, second, third, fourth] = [(); 4].map(|()| delivery.receipt());
        assert_eq!((delivery.counts().waiting(), delivery.counts().last_answer), (4, None));
        first.acknowledge(&sidecar("web-1.shop", "east"), Instant::now());
        second.refuse(&sidecar("web-0.shop", "east"), Instant::now(), "no such filter");
        drop(third);
        let counts = delivery.counts();
        assert!(counts.last_answer.is_some());
        let DeliveryCounts { proxies, acknowledged, refused, unfollowed, .. } = counts;
        assert_eq!([proxies, acknowledged, refused, unfollowed, counts.waiting()], [4, 1, 1, 1, 1]);
        let refusals = delivery.steps().refusals;
        assert_eq!(refusals.len(), 1);
        assert!(
            refusals[0].proxy.contains("~web-0.shop~") && &*refusals[0].error == "no such filter"
        );
        assert_eq!(delivery.refused_by(), [Arc::clone(&refusals[0].proxy)]);
        fourth.acknowledge(&sidecar("web-2.shop", "east"), Instant::now());
        assert_eq!(delivery.counts().waiting(), 0);
    }

    #[test]
    fn steps_of_a_proxy_have_times_and_a_response() {
        let delivery = Arc::new(Delivery::new(Instant::now()));
        let proxies = ["a.shop", "b.shop", "c.shop", "d.shop"].map(|name| sidecar(name, "east"));
        let mut receipts = proxies.each_ref().map(|_| delivery.receipt());
        // The fourth proxy receives nothing.
        for (receipt, proxy) in receipts.iter_mut().zip(&proxies[..3]) {
            receipt.sent(proxy, Instant::now());
        }
        let sent = delivery.steps();
        assert!(sent.proxies().all(|one| one.sent.is_some() && one.answered.is_none()));
        let [a, b, c, d] = receipts;
        a.acknowledge(&proxies[0], Instant::now());
        b.refuse(&proxies[1], Instant::now(), &"x".repeat(3 * ERROR_BYTES_MAX));
        drop(c);
        d.acknowledge(&proxies[3], Instant::now());
        let steps = delivery.steps();
        let answers: Vec<_> = steps.proxies().map(|one| one.answer.as_str()).collect();
        assert_eq!(answers, ["acknowledged", "refused", "unfollowed", "acknowledged"]);
        for one in steps.proxies() {
            let is_answered = one.answer != ProxyAnswer::Unfollowed;
            assert_eq!(one.answered.is_some(), is_answered, "{one:?}");
            assert!(one.answered.is_none_or(|then| one.sent.is_none_or(|sent| sent <= then)));
            assert_eq!(ProxyAnswer::from_name(one.answer.as_str()), one.answer);
        }
        assert!(steps.first[3].sent.is_none(), "{steps:?}");
        assert_eq!(steps.refusals[0].error.len(), ERROR_BYTES_MAX);
    }

    #[test]
    fn steps_are_recorded_for_the_first_recipients_and_the_last_to_respond() {
        let delivery = Arc::new(Delivery::new(Instant::now()));
        let proxies: Vec<_> =
            (0..200).map(|at| sidecar(&format!("p{at:03}.shop"), "east")).collect();
        let mut receipts: Vec<_> = proxies.iter().map(|_| delivery.receipt()).collect();
        for (receipt, proxy) in receipts.iter_mut().zip(&proxies) {
            receipt.sent(proxy, Instant::now());
            // A second call has no effect.
            receipt.sent(proxy, Instant::now());
        }
        // The first proxies respond last.
        for (receipt, proxy) in receipts.into_iter().zip(&proxies).rev() {
            receipt.acknowledge(proxy, Instant::now());
        }
        let steps = delivery.steps();
        let expected: Vec<_> = (0..FIRST_MAX).map(|at| format!("p{at:03}.shop")).collect();
        assert_eq!(names(steps.first.clone()), expected);
        assert_eq!(delivery.lock().first.capacity(), FIRST_MAX);
        let latest = steps.proxies().filter_map(|one| one.answered).max();
        assert_eq!(delivery.counts().last_answer, latest);
        let expected: Vec<_> =
            (FIRST_MAX..FIRST_MAX + LAST_MAX).rev().map(|at| format!("p{at:03}.shop")).collect();
        assert_eq!(names(steps.last.clone()), expected);
        assert!(steps.proxies().all(|one| one.answer == ProxyAnswer::Acknowledged));
        assert_eq!(delivery.counts().waiting(), 0);
    }
}
