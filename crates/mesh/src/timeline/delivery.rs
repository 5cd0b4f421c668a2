//! How far the proxies that are sent a change have followed: counts of all of them, and the steps of some.
//!
//! Each stream that is woken for a change holds a [`Receipt`] and hands it back with the proxy's answer. Of most only the counts
//! are kept. Which proxy it was, and when, is kept of the first few that were sent the change, of the last few that answered, and
//! of those that refused it: room for these is taken once, and the lock is held for one line of it. Streams are what there are
//! most of, so they leave moments as their clock gave them, one that they have anyhow where they can; how long each step took, and
//! which answer was the last, is worked out for whoever asks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use strait_base::bounded::head;
use strait_model::{ClusterId, Proxy};

/// Of so many proxies that are sent a change first the steps are kept.
const FIRST_MAX: usize = 32;
/// And of so many of the others, those that answer last.
const LAST_MAX: usize = 8;
/// How many of the proxies that refuse a change are named.
const REFUSERS_MAX: usize = 8;
/// How many bytes of what they say is kept of each.
const ERROR_BYTES_MAX: usize = 1024;

/// How far the proxies that are sent a change have followed.
#[derive(Debug)]
pub struct Delivery {
    pub(super) heard: Instant,
    proxies: AtomicU32,
    acknowledged: AtomicU32,
    refused: AtomicU32,
    unfollowed: AtomicU32,
    /// When the last answer came, of a change that nobody will hear more of.
    past_answer: Option<Duration>,
    /// How many of the first have been sent it: whether there is room is asked without the lock.
    first: AtomicU32,
    lines: Mutex<DeliveryLines>,
    /// Who waits for some of the answers, while streams are woken.
    awaiting: Option<mpsc::WeakSender<()>>,
}

/// [`DeliverySteps`] as streams leave them.
#[derive(Debug, Default)]
struct DeliveryLines {
    first: Vec<ProxyLine>,
    last: VecDeque<ProxyLine>,
    refusals: Vec<DeliveryRefusal>,
}

/// [`ProxySteps`], in moments.
#[derive(Debug)]
struct ProxyLine {
    proxy: Arc<str>,
    cluster: ClusterId,
    sent: Option<Instant>,
    answered: Option<Instant>,
    answer: ProxyAnswer,
}

/// Who was sent a change, as far as that is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliverySteps {
    /// Those that were sent it first, in that order.
    pub first: Vec<ProxySteps>,
    /// Of the others those that answered last, in that order.
    pub last: VecDeque<ProxySteps>,
    /// Who refused it, the first few.
    pub refusals: Vec<DeliveryRefusal>,
}

/// What one proxy did of a change, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySteps {
    /// Its node id.
    pub proxy: Arc<str>,
    /// Its cluster: proxies of two may have one node id.
    pub cluster: ClusterId,
    /// From when the change was heard until it was sent the first of it; `None` where there was nothing to send.
    pub sent: Option<Duration>,
    /// From when the change was heard until it had answered; `None` while it has not, or where nobody knows.
    pub answered: Option<Duration>,
    /// How it answered.
    pub answer: ProxyAnswer,
}

/// How a proxy has answered what it was sent of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyAnswer {
    /// Not yet.
    Waiting,
    /// It has acknowledged all of it.
    Acknowledged,
    /// It has refused some of it.
    Refused,
    /// Nobody knows: its stream ended first, or it had too much else to answer.
    Unfollowed,
}

/// A proxy that refused a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRefusal {
    /// Its node id.
    pub proxy: Arc<str>,
    /// What it said.
    pub error: Arc<str>,
}

/// A [`Delivery`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Streams that were woken for it.
    pub proxies: u32,
    /// Those that have acknowledged all that they were sent since, or had nothing to be sent.
    pub acknowledged: u32,
    /// Those that refused some of it.
    pub refused: u32,
    /// Those of which nobody knows: they ended first, or had too much else to answer.
    pub unfollowed: u32,
    /// From when it was heard until the last answer; `None` before the first.
    pub last_answer: Option<Duration>,
}

/// What one stream owes: whether its proxy has followed. Dropped without an answer, nobody knows.
#[derive(Debug)]
pub struct Receipt {
    delivery: Option<Arc<Delivery>>,
    /// When it was sent the first of it.
    sent: Option<Instant>,
    /// Which of the first it is.
    first: Option<u8>,
    /// Goes with it, whatever the answer.
    _awaited: Option<mpsc::Sender<()>>,
}

impl Delivery {
    /// Of a change that was heard then, and nobody was sent yet.
    pub fn new(heard: Instant) -> Self {
        let none = DeliveryCounts {
            proxies: 0,
            acknowledged: 0,
            refused: 0,
            unfollowed: 0,
            last_answer: None,
        };
        Self::past(heard, none, DeliverySteps::default())
    }

    /// How far one came of which nobody will hear more.
    pub(super) fn past(heard: Instant, counts: DeliveryCounts, steps: DeliverySteps) -> Self {
        let line = |steps: ProxySteps| ProxyLine::of_steps(steps, heard);
        let lines = DeliveryLines {
            first: steps.first.into_iter().map(line).collect(),
            last: steps.last.into_iter().map(line).collect(),
            refusals: steps.refusals,
        };
        Self {
            heard,
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

    /// The same; whoever reads what is sent there can tell when all [awaited](Self::awaited_receipt) answers have come: nobody has
    /// the sender any more.
    #[must_use]
    pub fn awaited_by(self, sender: &mpsc::Sender<()>) -> Self {
        Self { awaiting: Some(sender.downgrade()), ..self }
    }

    /// For one stream more.
    pub fn receipt(self: &Arc<Self>) -> Receipt {
        self.proxies.fetch_add(1, Ordering::Relaxed);
        Receipt { delivery: Some(Arc::clone(self)), sent: None, first: None, _awaited: None }
    }

    /// For one stream more, whose answer somebody waits for.
    pub fn awaited_receipt(self: &Arc<Self>) -> Receipt {
        let mut receipt = self.receipt();
        receipt._awaited = self.awaiting.as_ref().and_then(mpsc::WeakSender::upgrade);
        receipt
    }

    /// How far it is now.
    pub fn counts(&self) -> DeliveryCounts {
        DeliveryCounts {
            proxies: self.proxies.load(Ordering::Relaxed),
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            unfollowed: self.unfollowed.load(Ordering::Relaxed),
            last_answer: self.past_answer.or_else(|| self.last_answer()),
        }
    }

    /// When the last answer came. Who gave it is among those that are kept: the first, and the last to answer.
    fn last_answer(&self) -> Option<Duration> {
        let lines = self.lock();
        let last = lines.first.iter().chain(&lines.last).filter_map(|line| line.answered).max();
        last.map(|last| self.after(last))
    }

    /// Who was sent it, as far as that is kept.
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

    /// The node ids of proxies that refused some of it: the first eight.
    pub fn refused_by(&self) -> Vec<Arc<str>> {
        self.lock().refusals.iter().map(|one| Arc::clone(&one.proxy)).collect()
    }

    /// How long after it was heard that was, in whole microseconds, of which nothing takes none.
    fn after(&self, then: Instant) -> Duration {
        let micros = then.saturating_duration_since(self.heard).as_micros();
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX).max(1))
    }

    /// Takes a place among the first, where there is one, for a proxy that was sent it then.
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
            // All of the room at once; most changes are for few.
            let proxies = self.proxies.load(Ordering::Relaxed) as usize;
            lines.first.reserve_exact(proxies.clamp(1, FIRST_MAX));
        }
        lines.first.push(ProxyLine::of(proxy, sent));
        self.first.store(u32::try_from(place + 1).unwrap_or(u32::MAX), Ordering::Relaxed);
        u8::try_from(place).ok()
    }

    /// Notes the answer that a proxy gave then: in its line, or among the last.
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

    /// That of a change that was heard then.
    fn of_steps(steps: ProxySteps, heard: Instant) -> Self {
        let at = |after: Option<Duration>| after.and_then(|after| heard.checked_add(after));
        let (sent, answered) = (at(steps.sent), at(steps.answered));
        Self { proxy: steps.proxy, cluster: steps.cluster, sent, answered, answer: steps.answer }
    }
}

impl ProxyAnswer {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Acknowledged => "acknowledged",
            Self::Refused => "refused",
            Self::Unfollowed => "unfollowed",
        }
    }

    /// What that word stands for; an unknown one for what nobody knows.
    pub(super) fn of_word(word: &str) -> Self {
        let all = [Self::Waiting, Self::Acknowledged, Self::Refused];
        all.into_iter().find(|one| one.as_str() == word).unwrap_or(Self::Unfollowed)
    }
}

impl DeliverySteps {
    /// All proxies whose steps are kept: those that were sent it first, then those that answered last.
    pub fn proxies(&self) -> impl Iterator<Item = &ProxySteps> {
        self.first.iter().chain(&self.last)
    }
}

impl DeliveryCounts {
    /// How many have yet to answer.
    pub fn waiting(&self) -> u32 {
        self.proxies.saturating_sub(self.acknowledged + self.refused + self.unfollowed)
    }
}

impl Receipt {
    /// The proxy was sent the first of what the change is for it, then.
    pub fn sent(&mut self, proxy: &Proxy, at: Instant) {
        if self.sent.is_none()
            && let Some(delivery) = &self.delivery
        {
            self.sent = Some(at);
            self.first = delivery.enter_first(proxy, self.sent);
        }
    }

    /// The proxy has acknowledged all that it was sent of the change, then.
    pub fn acknowledge(mut self, proxy: &Proxy, at: Instant) {
        if let Some(delivery) = self.delivery.take() {
            drop(delivery.note(&self, proxy, at, ProxyAnswer::Acknowledged));
            delivery.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The proxy refused some of it then, and said why.
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

/// The first of a text that comes from outside.
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
    fn who_was_sent_a_change_is_counted_by_how_it_ended() {
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
    fn a_proxy_has_the_times_of_its_steps_and_how_it_answered() {
        let delivery = Arc::new(Delivery::new(Instant::now()));
        let proxies = ["a.shop", "b.shop", "c.shop", "d.shop"].map(|name| sidecar(name, "east"));
        let mut receipts = proxies.each_ref().map(|_| delivery.receipt());
        // The fourth has nothing to be sent.
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
            assert_eq!(ProxyAnswer::of_word(one.answer.as_str()), one.answer);
        }
        assert!(steps.first[3].sent.is_none(), "{steps:?}");
        assert_eq!(steps.refusals[0].error.len(), ERROR_BYTES_MAX);
    }

    #[test]
    fn steps_are_kept_of_the_first_that_are_sent_it_and_of_the_last_that_answer() {
        let delivery = Arc::new(Delivery::new(Instant::now()));
        let proxies: Vec<_> =
            (0..200).map(|at| sidecar(&format!("p{at:03}.shop"), "east")).collect();
        let mut receipts: Vec<_> = proxies.iter().map(|_| delivery.receipt()).collect();
        for (receipt, proxy) in receipts.iter_mut().zip(&proxies) {
            receipt.sent(proxy, Instant::now());
            // Once only.
            receipt.sent(proxy, Instant::now());
        }
        // The first are the last to answer.
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
