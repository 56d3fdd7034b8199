use tokio::sync::{Semaphore, mpsc::UnboundedSender};

use super::*;

/// Tells what it is sent, waits until it may answer, and says on which link that was.
struct Asked(u32, Sender<usize>);

/// Asked with this number, a batch panics.
const PANICS: u32 = 77;

/// Said of a connection that was given up.
const GIVEN_UP: u32 = 78;

struct Wire {
    place: usize,
    sent: UnboundedSender<(usize, Vec<u32>)>,
    may_answer: Arc<Semaphore>,
}

impl Linked for Wire {
    fn give_up(&mut self) {
        let _ = self.sent.send((self.place, vec![GIVEN_UP]));
    }

    async fn close(&mut self) {}
}

impl Element for Asked {
    type Link = Wire;
    const STORE: &'static str = "test";
    const BATCH_MAX: usize = 8;
    const BATCH_EAGER: usize = 4;

    fn bytes(&self) -> usize {
        1
    }

    fn is_abandoned(&self) -> bool {
        self.1.is_closed()
    }

    async fn run(batch: Vec<Self>, link: &mut Wire) {
        let numbers: Vec<_> = batch.iter().map(|asked| asked.0).collect();
        let panics = numbers.contains(&PANICS);
        let _ = link.sent.send((link.place, numbers));
        link.may_answer.acquire().await.expect("open").forget();
        assert!(!panics, "as it was told to");
        for Asked(_, sender) in batch {
            let _ = sender.send(Ok(link.place));
        }
    }
}

struct Sample {
    lane: Lane<Asked>,
    sent: mpsc::UnboundedReceiver<(usize, Vec<u32>)>,
    may_answer: Arc<Semaphore>,
    close: watch::Sender<bool>,
}

/// With two connections.
fn sample() -> Sample {
    let (sender, sent) = mpsc::unbounded_channel();
    let may_answer = Arc::new(Semaphore::new(0));
    let (close, closing) = watch::channel(false);
    let wire = |place| Wire { place, sent: sender.clone(), may_answer: Arc::clone(&may_answer) };
    let lane = Lane::start(vec![wire(0), wire(1)], &closing);
    Sample { lane, sent, may_answer, close }
}

impl Sample {
    fn ask(&self, number: u32) -> tokio::task::JoinHandle<Result<usize, StoreError>> {
        let lane = self.lane.clone();
        tokio::spawn(async move { lane.ask(|sender| Asked(number, sender)).await })
    }

    async fn sent(&mut self) -> (usize, Vec<u32>) {
        self.sent.recv().await.expect("somebody sends")
    }
}

#[tokio::test(start_paused = true)]
async fn one_after_the_other_go_over_one_connection() {
    let mut sample = sample();
    sample.may_answer.add_permits(5);
    let mut places = Vec::new();
    for number in 0..5 {
        places.push(sample.ask(number).await.expect("no panic").expect("answered"));
        assert_eq!(sample.sent().await.1, [number]);
    }
    places.dedup();
    assert_eq!(places.len(), 1, "{places:?}");
}

#[tokio::test(start_paused = true)]
async fn few_that_come_while_one_is_on_its_way_go_together_after_it() {
    let mut sample = sample();
    let first = sample.ask(0);
    let (place, _) = sample.sent().await;
    let others = [sample.ask(1), sample.ask(2)];
    tokio::task::yield_now().await;
    assert!(sample.sent.try_recv().is_err(), "they wait");
    sample.may_answer.add_permits(2);
    assert_eq!(sample.sent().await, (place, vec![1, 2]));
    assert_eq!(first.await.expect("no panic").expect("answered"), place);
    for other in others {
        assert_eq!(other.await.expect("no panic").expect("answered"), place);
    }
}

#[tokio::test(start_paused = true)]
async fn many_that_come_while_one_is_on_its_way_go_beside_it_at_once() {
    let mut sample = sample();
    let _first = sample.ask(0);
    let (place, _) = sample.sent().await;
    let begun = tokio::time::Instant::now();
    let _others: Vec<_> = (1..5).map(|number| sample.ask(number)).collect();
    assert_eq!(sample.sent().await, (1 - place, vec![1, 2, 3, 4]));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_long_for_one_that_is_stuck() {
    let mut sample = sample();
    let _stuck = sample.ask(0);
    let (place, _) = sample.sent().await;
    let begun = tokio::time::Instant::now();
    let _next = sample.ask(1);
    assert_eq!(sample.sent().await, (1 - place, vec![1]));
    assert_eq!(begun.elapsed().as_millis(), GATHER_TIME_MAX.as_millis());
}

/// Until nobody has anything to do.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn when_the_line_is_full_callers_wait_for_a_place_and_may_go_without_a_trace() {
    let mut sample = sample();
    let free = |sample: &Sample| sample.lane.line.capacity();
    // Both connections are busy, and the next batch is gathered: nobody looks at the line.
    let mut asked = Vec::new();
    for few in [100..101, 101..105, 105..109] {
        asked.extend(few.map(|number| sample.ask(number)));
        settle().await;
    }
    assert_eq!(sample.sent().await.1, [100]);
    assert_eq!(sample.sent().await.1, [101, 102, 103, 104]);
    let all = u32::try_from(LINE_MAX).expect("a small number");
    let first = 1_000;
    asked.extend((first..first + all - 1).map(|number| sample.ask(number)));
    settle().await;
    assert_eq!(free(&sample), 1);
    let too_many = first + all - 1..first + all + 4;
    let mut waiting: Vec<_> = too_many.map(|number| sample.ask(number)).collect();
    settle().await;
    assert_eq!(free(&sample), 0, "one has got the last place, and four have none");
    assert!(sample.sent.try_recv().is_err());
    // The second of those four goes.
    let gone = waiting.remove(2);
    gone.abort();
    assert!(gone.await.expect_err("it was told to").is_cancelled());
    settle().await;
    assert_eq!(free(&sample), 0, "its place was nobody's");

    sample.may_answer.add_permits(10_000);
    for asked in asked.into_iter().chain(waiting) {
        asked.await.expect("no panic").expect("answered");
    }
    let mut sent = Vec::new();
    while let Ok((_, numbers)) = sample.sent.try_recv() {
        sent.extend(numbers);
    }
    sent.sort();
    let is_sent = |number: &u32| *number != first + all + 1;
    let others = (first..first + all + 4).filter(is_sent);
    assert!(sent.into_iter().eq((105..109).chain(others)), "each once, but for the one");
    assert_eq!(free(&sample), LINE_MAX, "no place was lost");
}

#[tokio::test(start_paused = true)]
async fn after_a_panic_callers_are_told_that_nobody_knows_and_the_next_batches_go() {
    let mut sample = sample();
    // More often than there are workers.
    for round in 0..3 {
        let first = sample.ask(round);
        let (place, _) = sample.sent().await;
        let cut_off = [sample.ask(PANICS), sample.ask(10 + round)];
        tokio::task::yield_now().await;
        sample.may_answer.add_permits(2);
        assert!(first.await.expect("no panic").is_ok(), "it was answered before");
        assert_eq!(sample.sent().await, (place, vec![PANICS, 10 + round]));
        for asked in cut_off {
            let error = asked.await.expect("no panic").expect_err("its batch panicked");
            assert_eq!(error.kind(), StoreErrorKind::Ambiguous, "{error}");
        }
        assert_eq!(sample.sent().await, (place, vec![GIVEN_UP]));
    }
    sample.may_answer.add_permits(1);
    assert!(sample.ask(4).await.expect("no panic").is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_stands_in_line_when_it_closes_is_still_answered() {
    let mut sample = sample();
    let asked: Vec<_> = (0..3).map(|number| sample.ask(number)).collect();
    sample.sent().await;
    tokio::task::yield_now().await;
    sample.close.send(true).expect("somebody listens");
    sample.may_answer.add_permits(3);
    for asked in asked {
        asked.await.expect("no panic").expect("answered");
    }
    sample.lane.ended().await;
    assert!(sample.ask(3).await.expect("no panic").is_err(), "and nothing after it");
}
