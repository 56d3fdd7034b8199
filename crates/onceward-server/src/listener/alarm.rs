//! Timers that hardly ever go off. Every request has some, and each would be set and taken back in
//! vain: a connection keeps the one that it has set, and when that goes off early it is set anew for
//! whoever waits by then.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant as StdInstant},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// The timers of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alarms(Arc<Mutex<Option<Set>>>);

/// A timer that is set, and whom it wakes.
#[derive(Debug)]
struct Set {
    sleep: Pin<Box<Sleep>>,
    wakes: Waker,
}

impl Alarms {
    /// Goes off at a time.
    pub(crate) fn at(&self, deadline: Instant) -> Alarm {
        Alarm { alarms: self.clone(), deadline, set: None }
    }

    /// What comes of a future until a time.
    pub(crate) async fn until<F: Future>(&self, deadline: Instant, future: F) -> Option<F::Output> {
        let mut alarm = self.at(deadline);
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Pin::new(&mut alarm).poll(context).map(|()| None),
        })
        .await
    }

    fn kept(&self) -> MutexGuard<'_, Option<Set>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The header timeout of HTTP/1 is hyper's.
impl hyper::rt::Timer for Alarms {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(self.at(Instant::now() + duration))
    }

    fn sleep_until(&self, deadline: StdInstant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(self.at(deadline.into()))
    }

    fn now(&self) -> StdInstant {
        Instant::now().into()
    }
}

/// One wait for a time.
#[derive(Debug)]
pub(crate) struct Alarm {
    alarms: Alarms,
    deadline: Instant,
    /// None before it was waited for.
    set: Option<Set>,
}

impl hyper::rt::Sleep for Alarm {}

impl Future for Alarm {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Set { sleep, wakes } = this.set.get_or_insert_with(|| {
            let new = || Set {
                sleep: Box::pin(sleep_until(this.deadline)),
                wakes: Waker::noop().clone(),
            };
            this.alarms.kept().take().unwrap_or_else(new)
        });
        let is_set = !sleep.is_elapsed() && sleep.deadline() <= this.deadline;
        if is_set && wakes.will_wake(context.waker()) {
            return Poll::Pending;
        }
        loop {
            if sleep.deadline() > this.deadline {
                sleep.as_mut().reset(this.deadline);
            }
            match sleep.as_mut().poll(context) {
                Poll::Ready(()) if sleep.deadline() >= this.deadline => return Poll::Ready(()),
                Poll::Ready(()) => sleep.as_mut().reset(this.deadline),
                Poll::Pending => {
                    wakes.clone_from(context.waker());
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(set) = self.set.take() {
            *self.alarms.kept() = Some(set);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_goes_off_at_its_time_whatever_was_set_before() {
        let (alarms, begun) = (Alarms::default(), Instant::now());
        for (given_up, deadline) in [(10, 30), (60, 20), (5, 5), (1, 100), (100, 1)] {
            let now = begun.elapsed();
            // Set, and not needed after all.
            let quick = alarms.until(Instant::now() + seconds(given_up), async {
                sleep(Duration::from_millis(1)).await;
            });
            assert!(quick.await.is_some());
            let late = alarms.until(begun + now + seconds(deadline), pending::<()>());
            assert!(late.await.is_none());
            assert_eq!(begun.elapsed(), now + seconds(deadline), "{given_up} {deadline}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_alarms_at_once_are_two_timers() {
        let (alarms, begun) = (Alarms::default(), Instant::now());
        let elapsed = |alarm: Alarm| async move {
            alarm.await;
            begun.elapsed()
        };
        let (first, second) = tokio::join!(
            elapsed(alarms.at(begun + seconds(7))),
            elapsed(alarms.at(begun + seconds(3)))
        );
        assert_eq!((first, second), (seconds(7), seconds(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_another_task_has_set_wakes_the_one_that_waits_now() {
        let (alarms, begun) = (Alarms::default(), Instant::now());
        let theirs = alarms.clone();
        let set = tokio::spawn(async move {
            theirs.until(begun + seconds(9), sleep(seconds(1))).await.expect("in time");
        });
        set.await.expect("no panic");
        assert!(alarms.until(begun + seconds(20), pending::<()>()).await.is_none());
        assert_eq!(begun.elapsed(), seconds(20));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_for_twice_is_not_earlier_the_second_time() {
        let (alarms, begun) = (Alarms::default(), Instant::now());
        for number in 1..=50 {
            let deadline = Instant::now() + seconds(10);
            assert!(alarms.until(deadline, sleep(seconds(1))).await.is_some());
            assert_eq!(begun.elapsed(), seconds(number), "nobody is cut off");
        }
    }
}
