use std::future::poll_fn;
use std::sync::atomic::AtomicUsize;
use std::task::Poll;

use loom::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// The primitives of the model checker. It runs the interleavings of the threads, and fails if the
/// task is never woken.
mod sync {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering};
}

/// The word with these primitives.
#[path = "bits.rs"]
#[expect(clippy::duplicate_mod, reason = "it is compiled with other primitives")]
mod bits;

/// Runs all interleavings in which a thread is interrupted at most three times. All of them would
/// take minutes.
fn check(threads: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(threads);
}

const FIRST: WakeReasons = WakeReasons::bit(0);
const SECOND: WakeReasons = WakeReasons::bit(1);

/// Counts its wake-ups.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn task_is_woken_once_for_all_reasons_that_it_has_not_taken() {
    let count = Arc::<Counting>::default();
    let waker = Waker::from(Arc::clone(&count));
    let context = Context::from_waker(&waker);
    let wakeups = || count.0.load(Ordering::Relaxed);
    let mut word = WakeReceiver::default();
    let (first, second) = (word.handle(FIRST), word.waker(SECOND));
    first.wake();
    assert!(word.take(&context).has(FIRST), "it was set before the task was known");
    assert_eq!((word.take(&context), wakeups()), (WakeReasons::default(), 0));
    first.wake();
    second.wake_by_ref();
    first.wake();
    assert_eq!(wakeups(), 1);
    let taken = word.take(&context);
    assert!(taken.has(FIRST) && taken.has(SECOND));
    second.wake();
    assert_eq!(wakeups(), 2);
    assert_eq!(word.take(&context), SECOND);
}

#[test]
fn last_registered_task_is_woken() {
    let mut word = WakeReceiver::default();
    let counts = [(); 2].map(|()| Arc::<Counting>::default());
    for count in &counts {
        word.take(&Context::from_waker(&Waker::from(Arc::clone(count))));
    }
    word.handle(FIRST).wake();
    assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
}

#[test]
fn reasons_are_added_and_removed() {
    let mut reasons = FIRST;
    reasons.add(SECOND);
    reasons.remove(FIRST);
    assert_eq!(reasons, SECOND);
    assert!(!reasons.has(FIRST));
}

#[test]
fn no_reason_of_several_sources_is_lost() {
    check(|| {
        let word = loom::sync::Arc::new(bits::WakeBits::default());
        let data = loom::sync::Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        for source in 0..2 {
            let (word, data) = (word.clone(), data.clone());
            loom::thread::spawn(move || {
                data[source].store(1, Ordering::Relaxed);
                word.set(1 << source);
            });
        }
        let (mut is_registered, mut taken) = (false, 0);
        loom::future::block_on(poll_fn(|context| {
            if !std::mem::replace(&mut is_registered, true) {
                word.register(context.waker().clone());
            }
            let bits = word.take();
            for (source, data) in data.iter().enumerate() {
                if bits & 1 << source != 0 {
                    assert_eq!(data.load(Ordering::Relaxed), 1, "the reason precedes its data");
                }
            }
            taken |= bits;
            if taken == 3 { Poll::Ready(()) } else { Poll::Pending }
        }));
    });
}

#[test]
fn no_repetition_of_a_reason_is_lost() {
    check(|| {
        let word = loom::sync::Arc::new(bits::WakeBits::default());
        let data = loom::sync::Arc::new(AtomicU32::new(0));
        let (of_source, data_of_source) = (word.clone(), data.clone());
        loom::thread::spawn(move || {
            for number in 1..=2 {
                data_of_source.store(number, Ordering::Relaxed);
                of_source.set(1);
            }
        });
        let (mut is_registered, mut last) = (false, 0);
        loom::future::block_on(poll_fn(|context| {
            if !std::mem::replace(&mut is_registered, true) {
                word.register(context.waker().clone());
            }
            // Like a stream, the task reads the data only for a reason.
            if word.take() != 0 {
                last = data.load(Ordering::Relaxed);
            }
            if last == 2 { Poll::Ready(()) } else { Poll::Pending }
        }));
    });
}

#[test]
fn no_reason_is_lost_while_the_waker_changes() {
    check(|| {
        let word = loom::sync::Arc::new(bits::WakeBits::default());
        for source in 0..2 {
            let word = word.clone();
            loom::thread::spawn(move || word.set(1 << source));
        }
        // The task polls once with another waker, as when it moves into another future.
        word.register(Waker::noop().clone());
        let mut taken = word.take();
        loom::future::block_on(poll_fn(|context| {
            word.register(context.waker().clone());
            taken |= word.take();
            if taken == 3 { Poll::Ready(()) } else { Poll::Pending }
        }));
    });
}
