//! How far the proxies that are sent a change have followed: counts of all of them, and the steps of some.
//!
//! Each stream that is woken for a change holds a [`Receipt`] and hands it back with the proxy's answer. Of most only the counts
//! are kept. Which proxy it was, and when, is kept of the first few that were sent the change, of the last few that answered, and
//! of those that refused it: room for these is taken once, and the lock is held for one line of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::model::{ClusterId, Proxy};

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
    /// When the last answer came, in microseconds after the change was heard.
    last_answer: AtomicU64,
    /// How many of the first have been sent it: whether there is room is asked without the lock.
    first: AtomicU32,
    steps: Mutex<DeliverySteps>,
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
    /// When it was sent the first of it, in microseconds after the change was heard.
    sent: Option<u32>,
    /// Which of the first it is.
    first: Option<u8>,
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
        Self {
            heard,
            proxies: AtomicU32::new(counts.proxies),
            acknowledged: AtomicU32::new(counts.acknowledged),
            refused: AtomicU32::new(counts.refused),
            unfollowed: AtomicU32::new(counts.unfollowed),
            last_answer: AtomicU64::new(
                counts.last_answer.map_or(0, |after| micros(after).unwrap_or(u64::MAX)),
            ),
            first: AtomicU32::new(u32::try_from(steps.first.len()).unwrap_or(u32::MAX)),
            steps: Mutex::new(steps),
        }
    }

    /// For one stream more.
    pub fn receipt(self: &Arc<Self>) -> Receipt {
        self.proxies.fetch_add(1, Ordering::Relaxed);
        Receipt { delivery: Some(Arc::clone(self)), sent: None, first: None }
    }

    /// How far it is now.
    pub fn counts(&self) -> DeliveryCounts {
        let last = self.last_answer.load(Ordering::Relaxed);
        DeliveryCounts {
            proxies: self.proxies.load(Ordering::Relaxed),
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            unfollowed: self.unfollowed.load(Ordering::Relaxed),
            last_answer: (last > 0).then(|| Duration::from_micros(last)),
        }
    }

    /// Who was sent it, as far as that is kept.
    pub fn steps(&self) -> DeliverySteps {
        self.lock().clone()
    }

    /// The node ids of proxies that refused some of it: the first eight.
    pub fn refused_by(&self) -> Vec<Arc<str>> {
        self.lock().refusals.iter().map(|one| Arc::clone(&one.proxy)).collect()
    }

    /// How long ago it was heard, in microseconds.
    fn after(&self) -> u64 {
        micros(self.heard.elapsed()).unwrap_or(u64::MAX).max(1)
    }

    /// Takes a place among the first, where there is one, for a proxy that was sent it then.
    fn enter_first(&self, proxy: &Proxy, sent: Option<u32>) -> Option<u8> {
        if self.first.load(Ordering::Relaxed) as usize >= FIRST_MAX {
            return None;
        }
        let mut steps = self.lock();
        let place = steps.first.len();
        if place >= FIRST_MAX {
            return None;
        }
        if place == 0 {
            // All of the room at once; most changes are for few.
            let proxies = self.proxies.load(Ordering::Relaxed) as usize;
            steps.first.reserve_exact(proxies.clamp(1, FIRST_MAX));
        }
        steps.first.push(ProxySteps::of(proxy, sent));
        self.first.store(u32::try_from(place + 1).unwrap_or(u32::MAX), Ordering::Relaxed);
        u8::try_from(place).ok()
    }

    /// Notes the answer of a proxy: in its line, or among the last.
    fn note(&self, receipt: &Receipt, proxy: &Proxy, answer: ProxyAnswer) {
        let first = receipt.first.or_else(|| self.enter_first(proxy, receipt.sent));
        let after = self.after();
        self.last_answer.fetch_max(after, Ordering::Relaxed);
        let mut steps = self.lock();
        let line = match first {
            Some(place) => steps.first.get_mut(usize::from(place)),
            None => {
                if steps.last.len() >= LAST_MAX {
                    steps.last.pop_front();
                } else if steps.last.is_empty() {
                    steps.last.reserve_exact(LAST_MAX);
                }
                steps.last.push_back(ProxySteps::of(proxy, receipt.sent));
                steps.last.back_mut()
            }
        };
        if let Some(line) = line {
            line.answered = Some(Duration::from_micros(after));
            line.answer = answer;
        }
    }

    /// A panic while the lock was held can't leave it half-changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, DeliverySteps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProxySteps {
    fn of(proxy: &Proxy, sent: Option<u32>) -> Self {
        Self {
            proxy: Arc::clone(&proxy.id),
            cluster: proxy.cluster.clone(),
            sent: sent.map(|after| Duration::from_micros(after.into())),
            answered: None,
            answer: ProxyAnswer::Waiting,
        }
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
    /// The proxy has been sent the first of what the change is for it.
    pub fn sent(&mut self, proxy: &Proxy) {
        if self.sent.is_none()
            && let Some(delivery) = &self.delivery
        {
            self.sent = Some(u32::try_from(delivery.after()).unwrap_or(u32::MAX));
            self.first = delivery.enter_first(proxy, self.sent);
        }
    }

    /// The proxy has acknowledged all that it was sent of the change.
    pub fn acknowledge(mut self, proxy: &Proxy) {
        if let Some(delivery) = self.delivery.take() {
            delivery.note(&self, proxy, ProxyAnswer::Acknowledged);
            delivery.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The proxy refused some of it, and said why.
    pub fn refuse(mut self, proxy: &Proxy, error: &str) {
        if let Some(delivery) = self.delivery.take() {
            delivery.note(&self, proxy, ProxyAnswer::Refused);
            let mut steps = delivery.lock();
            if steps.refusals.len() < REFUSERS_MAX {
                let error = cut(error).into();
                steps.refusals.push(DeliveryRefusal { proxy: Arc::clone(&proxy.id), error });
            }
            drop(steps);
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

fn micros(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_micros()).ok()
}

/// The first of a text that comes from outside.
fn cut(text: &str) -> &str {
    let most = text.len().min(ERROR_BYTES_MAX);
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::sidecar;

    fn names(steps: impl IntoIterator<Item = ProxySteps>) -> Vec<String> {
        let name = |one: ProxySteps| one.proxy.split('~').nth(2).unwrap_or_default().to_owned();
        steps.into_iter().map(name).collect()
    }

    #[test]
    fn who_was_sent_a_change_is_counted_by_how_it_ended() {
        let delivery = Arc::new(Delivery::new(Instant::now()));
        let [first, second, third, fourth] = [(); 4].map(|()| delivery.receipt());
        assert_eq!((delivery.counts().waiting(), delivery.counts().last_answer), (4, None));
        first.acknowledge(&sidecar("web-1.shop", "east"));
        second.refuse(&sidecar("web-0.shop", "east"), "no such filter");
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
        fourth.acknowledge(&sidecar("web-2.shop", "east"));
        assert_eq!(delivery.counts().waiting(), 0);
    }

    #[test]
    fn a_proxy_has_the_times_of_its_steps_and_how_it_answered() {
        let delivery = Arc::new(Delivery::new(Instant::now()));
        let proxies = ["a.shop", "b.shop", "c.shop", "d.shop"].map(|name| sidecar(name, "east"));
        let mut receipts = proxies.each_ref().map(|_| delivery.receipt());
        // The fourth has nothing to be sent.
        for (receipt, proxy) in receipts.iter_mut().zip(&proxies[..3]) {
            receipt.sent(proxy);
        }
        let sent = delivery.steps();
        assert!(sent.proxies().all(|one| one.sent.is_some() && one.answered.is_none()));
        let [a, b, c, d] = receipts;
        a.acknowledge(&proxies[0]);
        b.refuse(&proxies[1], &"x".repeat(3 * ERROR_BYTES_MAX));
        drop(c);
        d.acknowledge(&proxies[3]);
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
            receipt.sent(proxy);
            // Once only.
            receipt.sent(proxy);
        }
        // The first are the last to answer.
        for (receipt, proxy) in receipts.into_iter().zip(&proxies).rev() {
            receipt.acknowledge(proxy);
        }
        let steps = delivery.steps();
        let expected: Vec<_> = (0..FIRST_MAX).map(|at| format!("p{at:03}.shop")).collect();
        assert_eq!(names(steps.first.clone()), expected);
        assert_eq!(steps.first.capacity(), FIRST_MAX);
        let expected: Vec<_> =
            (FIRST_MAX..FIRST_MAX + LAST_MAX).rev().map(|at| format!("p{at:03}.shop")).collect();
        assert_eq!(names(steps.last.clone()), expected);
        assert!(steps.proxies().all(|one| one.answer == ProxyAnswer::Acknowledged));
        assert_eq!(delivery.counts().waiting(), 0);
    }
}
