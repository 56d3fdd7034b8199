//! Work that nobody cancels: done where somebody waits for it, and in a task of its own from the moment
//! on when nobody does.
//!
//! Most clients wait for their answer. Handing each request to another task, and its answer back, would
//! cost all of them what few need.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    runtime::Handle,
    sync::oneshot::{self, error::TryRecvError},
};
use tracing::Instrument as _;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits for the answer of some work, and does it meanwhile. When this is dropped, be it with the answer
/// or without, a task goes on with what is left.
pub(super) struct Detached<T> {
    /// None once it has come to its end.
    work: Option<Work>,
    answer: oneshot::Receiver<T>,
    /// Where to go on: whoever drops this may be outside of it.
    runtime: Handle,
}

impl<T> Detached<T> {
    /// To be made inside of a runtime.
    pub(super) fn new(work: Work, answer: oneshot::Receiver<T>) -> Self {
        Detached { work: Some(work), answer, runtime: Handle::current() }
    }
}

impl<T> Future for Detached<T> {
    /// None if the work has come to its end without an answer.
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(work) = &mut this.work {
            // A panic ends the work, as it would end a task, and not the connection that waits for it.
            let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
            if !matches!(polled, Ok(Poll::Pending)) {
                this.work = None;
            }
        }
        match this.answer.try_recv() {
            Ok(answer) => Poll::Ready(Some(answer)),
            Err(TryRecvError::Closed) => Poll::Ready(None),
            // Only the work answers, and it was told whom to wake. Were this task to be woken by the
            // answer too, it would be woken while it runs, and run once more for nothing.
            Err(TryRecvError::Empty) if this.work.is_some() => Poll::Pending,
            Err(TryRecvError::Empty) => Pin::new(&mut this.answer).poll(context).map(Result::ok),
        }
    }
}

impl<T> Drop for Detached<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work.in_current_span());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::{Wake, Waker},
    };

    use tokio::{
        runtime::{Builder, Runtime},
        sync::Notify,
        task,
    };

    use super::*;

    /// Work that answers at once or never, and is done once it may go on.
    struct Sample {
        detached: Detached<&'static str>,
        may_go_on: Arc<Notify>,
        done: oneshot::Receiver<Option<task::Id>>,
    }

    fn sample(answers: bool) -> Sample {
        let (sender, answer) = oneshot::channel();
        let (is_done, done) = oneshot::channel();
        let may_go_on = Arc::new(Notify::new());
        let gate = Arc::clone(&may_go_on);
        let work = Box::pin(async move {
            let kept = match answers {
                true => sender.send("answered").err().map(|_| unreachable!("somebody waits")),
                false => Some(sender),
            };
            gate.notified().await;
            drop(kept);
            let _ = is_done.send(task::try_id());
        });
        Sample { detached: Detached::new(work, answer), may_go_on, done }
    }

    async fn poll_once(detached: &mut Detached<&'static str>) {
        poll_fn(|context| {
            assert!(Pin::new(&mut *detached).poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().expect("a runtime")
    }

    #[tokio::test]
    async fn work_is_done_where_its_answer_is_waited_for() {
        let Sample { detached, may_go_on, done } = sample(false);
        may_go_on.notify_one();
        let waits = tokio::spawn(async move { (task::id(), detached.await) });
        let (waiting, answer) = waits.await.expect("no panic");
        assert!(answer.is_none(), "it came to its end without an answer");
        assert_eq!(done.await.expect("done"), Some(waiting));
    }

    #[tokio::test]
    async fn an_answer_does_not_wake_who_takes_it() {
        let (sender, answer) = oneshot::channel();
        let mut sender = Some(sender);
        let mut is_second = false;
        let work = Box::pin(poll_fn(move |_| {
            if !std::mem::replace(&mut is_second, true) {
                return Poll::Pending;
            }
            let sent = sender.take().map(|sender| sender.send("answered"));
            assert_eq!(sent, Some(Ok(())));
            Poll::Ready(())
        }));
        let mut detached = Detached::new(work, answer);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut detached).poll(&mut context).is_pending());
        let answered = Pin::new(&mut detached).poll(&mut context);
        assert_eq!(answered, Poll::Ready(Some("answered")));
        assert_eq!(wakes.0.load(Relaxed), 0);
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[tokio::test]
    async fn work_goes_on_in_a_task_of_its_own_when_nobody_waits_any_more() {
        let Sample { mut detached, may_go_on, done } = sample(false);
        poll_once(&mut detached).await;
        drop(detached);
        may_go_on.notify_one();
        assert!(done.await.expect("done").is_some_and(|id| task::try_id() != Some(id)));
    }

    #[tokio::test]
    async fn work_that_nobody_ever_waited_for_is_done_too() {
        let Sample { detached, may_go_on, done } = sample(false);
        drop(detached);
        may_go_on.notify_one();
        assert!(done.await.is_ok());
    }

    #[tokio::test]
    async fn an_answer_does_not_wait_for_what_is_left_to_do_after_it() {
        let Sample { detached, may_go_on, done } = sample(true);
        assert_eq!(detached.await, Some("answered"));
        may_go_on.notify_one();
        assert!(done.await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_ends_the_work_and_not_who_waits_for_it() {
        let (sender, answer) = oneshot::channel::<()>();
        let work = Box::pin(async move {
            let _held = sender;
            panic!("on purpose");
        });
        assert!(Detached::new(work, answer).await.is_none());
    }

    #[test]
    fn who_drops_it_may_be_outside_of_the_runtime() {
        let runtime = runtime();
        let Sample { mut detached, may_go_on, done } = runtime.block_on(async { sample(false) });
        runtime.block_on(poll_once(&mut detached));
        drop(detached);
        may_go_on.notify_one();
        assert!(runtime.block_on(done).is_ok());
    }

    #[test]
    fn a_runtime_that_ends_takes_the_work_with_it() {
        let runtime = runtime();
        let Sample { mut detached, done, .. } = runtime.block_on(async { sample(false) });
        runtime.block_on(async {
            poll_once(&mut detached).await;
            tokio::spawn(async move {
                let _detached = detached;
                pending::<()>().await;
            });
            task::yield_now().await;
        });
        drop(runtime);
        assert!(done.blocking_recv().is_err(), "it was not done, and nothing hangs");
    }
}
