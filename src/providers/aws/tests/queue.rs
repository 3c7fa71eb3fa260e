//! Interruption queue messages: which cluster receives them, and whether they are deleted. Source:
//! the cases of spec/aws.md §12.11.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use crate::ec2::errors::ErrorClass;
use crate::engine::event::Event;
use crate::host::clock::{self, Moment};
use crate::outbound::fence::Fence;
use crate::provider::Interruption;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::interruption_listener::{Engines, Listener};
use crate::providers::aws::sqs;

fn body(kind: &str, detail: &Value) -> String {
    let source = match kind {
        "AWS Health Event" => "aws.health",
        _ => "aws.ec2",
    };
    let body = json!({
        "version": "0", "source": source, "detail-type": kind, "time": "2026-01-01T00:00:00Z",
        "detail": detail,
    });
    body.to_string()
}

fn of_instance(kind: &str, id: &str) -> String {
    body(kind, &json!({ "instance-id": id, "state": "stopping" }))
}

fn health(ids: &[&str]) -> String {
    let entities: Vec<Value> = ids.iter().map(|id| json!({ "entityValue": id })).collect();
    let detail = json!({
        "service": "EC2", "eventTypeCategory": "scheduledChange", "affectedEntities": entities,
    });
    body("AWS Health Event", &detail)
}

const SPOT: &str = "EC2 Spot Instance Interruption Warning";
const RESERVATION: &str = "EC2 Capacity Reservation Instance Interruption Warning";
const REBALANCE: &str = "EC2 Instance Rebalance Recommendation";
const STATE: &str = "EC2 Instance State-change Notification";

/// Instances with their clusters, all of this installation.
const INSTANCES: [(&str, &str); 3] = [("i-1", "one"), ("i-2", "one"), ("i-far", "far")];

/// A message in the queue. Its receipt is `r` with its index, and a point.
struct Queued {
    body: String,
    visible_at: Instant,
    deliveries: u32,
    deleted: bool,
}

/// The queue: its messages, and an operation that fails.
#[derive(Default)]
struct Sqs {
    messages: Vec<Queued>,
    /// The instances that listings show, with their clusters.
    instances: Vec<(&'static str, &'static str)>,
    fails: Option<(&'static str, &'static str)>,
    /// The index of a message whose receipts expire at once.
    expires: Option<usize>,
}

impl Sqs {
    fn send(&mut self, body: &str) {
        let (body, visible_at) = (body.to_owned(), clock::monotonic_now());
        self.messages.push(Queued { body, visible_at, deliveries: 0, deleted: false });
    }

    /// At most ten visible messages. An empty queue responds after a second.
    fn receive(&mut self) -> Reply {
        let now = clock::monotonic_now();
        let visible = self.messages.iter_mut().enumerate();
        let visible = visible.filter(|(_, it)| !it.deleted && it.visible_at <= now).take(10);
        let received = visible.map(|(at, message)| {
            message.deliveries += 1;
            message.visible_at = now + Duration::from_secs(20);
            json!({
                "Body": message.body, "ReceiptHandle": format!("r{at}."),
                "Attributes": { "ApproximateReceiveCount": message.deliveries.to_string() },
            })
        });
        let received: Vec<Value> = received.collect();
        if received.is_empty() {
            return Reply::Delayed(Duration::from_secs(1), "{}".to_owned());
        }
        Reply::Json(json!({ "Messages": received }).to_string())
    }

    /// Deletes a message, or changes its visibility.
    fn change(&mut self, request: &str) -> Reply {
        let request: Value = serde_json::from_str(request).expect("JSON");
        let receipt = request["ReceiptHandle"].as_str().expect("a receipt");
        let index: usize = receipt[1..receipt.len() - 1].parse().expect("an index");
        if self.expires == Some(index) {
            return Reply::Error("ReceiptHandleIsInvalid", "The receipt handle has expired");
        }
        let message = &mut self.messages[index];
        match request["VisibilityTimeout"].as_u64() {
            Some(seconds) => {
                message.visible_at = clock::monotonic_now() + Duration::from_secs(seconds)
            }
            None => message.deleted = true,
        }
        Reply::Json("{}".to_owned())
    }
}

fn listing(instances: &[(&str, &str)]) -> String {
    let all: String = instances.iter().map(|(id, cluster)| {
        format!(
            "<item><instanceId>{id}</instanceId><instanceType>m5.large</instanceType><placement>\
             <availabilityZone>us-west-2a</availabilityZone></placement><instanceState><name>\
             running</name></instanceState><tagSet><item><key>outrigger.dev/cluster</key><value>\
             {cluster}</value></item></tagSet></item>"
        )
    }).collect();
    format!("<reservationSet><item><instancesSet>{all}</instancesSet></item></reservationSet>")
}

fn aws(messages: &[String]) -> (Arc<Mutex<Sqs>>, FakeAws) {
    let mut queue = Sqs { instances: INSTANCES.to_vec(), ..Sqs::default() };
    messages.iter().for_each(|message| queue.send(message));
    let sqs = Arc::new(Mutex::new(queue));
    let shared = sqs.clone();
    let aws = FakeAws::new(move |request| {
        let mut sqs = shared.lock().expect("no panic");
        let operation = request.operation.as_str();
        if let Some((fails, code)) = sqs.fails
            && fails == operation
        {
            return Reply::Error(code, "why");
        }
        match operation {
            "ReceiveMessage" => sqs.receive(),
            "GetQueueUrl" => Reply::Json(r#"{"QueueUrl":"https://queue.test/1/q"}"#.to_owned()),
            "DescribeInstances" => Reply::Xml(listing(&sqs.instances)),
            "DeleteMessage" | "ChangeMessageVisibility" => sqs.change(&request.body),
            _ => Reply::Json("{}".to_owned()),
        }
    });
    (sqs, aws)
}

/// The effects of messages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Handled {
    /// The events that the engine of cluster one received.
    events: Vec<(String, Interruption)>,
    /// The indices of deleted messages and of returned messages.
    deleted: BTreeSet<usize>,
    returned: BTreeSet<usize>,
}

fn listener(account: AwsClients, engines: Engines) -> Listener {
    let (installation, queue) = ("here".to_owned(), "q".to_owned());
    Listener::new(Arc::new(account), Arc::default(), engines, installation, queue)
}

fn engines(events: mpsc::Sender<Event>, fence: Fence) -> Engines {
    Arc::new(Mutex::new(BTreeMap::from([("one".into(), (events, fence))])))
}

/// The notices that an engine received.
type Notices = Arc<Mutex<Vec<(String, Interruption)>>>;

/// Starts the engine of cluster one: it handles each notice this long after it receives it.
fn engine(handles_after: Duration) -> (mpsc::Sender<Event>, Notices) {
    let (events, mut inbox) = mpsc::channel(2000);
    let notices = Notices::default();
    let received = notices.clone();
    tokio::spawn(async move {
        while let Some(event) = inbox.recv().await {
            let Event::Interrupted(instance, what, _, receipt) = event else {
                panic!("{event:?}");
            };
            received.lock().expect("no panic").push((instance.to_string(), what));
            tokio::spawn(async move {
                sleep(handles_after).await;
                receipt.expect("a receipt").acknowledge();
            });
        }
    });
    (events, notices)
}

/// Runs a leading daemon that reads the queue for this duration.
async fn receive(messages: &[String], seconds: u64) -> Handled {
    receive_behind(Fence::default(), messages, seconds).await
}

async fn receive_behind(fence: Fence, messages: &[String], seconds: u64) -> Handled {
    let (_, aws) = aws(messages);
    let (events, notices) = engine(Duration::ZERO);
    let reader = listener(aws.account(REGION), engines(events, fence));
    let task = tokio::spawn(reader.listen());
    sleep(Duration::from_secs(seconds)).await;
    task.abort();
    let requests = aws.take_requests();
    Handled {
        events: mem::take(&mut *notices.lock().expect("no panic")),
        deleted: message_indices(&requests, "DeleteMessage", messages.len()),
        returned: message_indices(&requests, "ChangeMessageVisibility", messages.len()),
    }
}

/// The messages that the requests of an operation name, by index.
fn message_indices(
    requests: &[RecordedRequest],
    operation: &str,
    messages: usize,
) -> BTreeSet<usize> {
    let requests = requests.iter().filter(|request| request.operation == operation);
    let bodies: String = requests.map(|request| request.body.as_str()).collect();
    let named = (0..messages).filter(|index| bodies.contains(&format!("\"r{index}.\"")));
    named.collect()
}

/// A message, the events of the engine, and whether it is deleted or returned.
type MessageCase<'a> = (String, &'a [(&'a str, Interruption)], bool);

#[tokio::test(start_paused = true)]
async fn queue_message_is_delivered_and_deleted_or_returned() {
    use Interruption::{Maintenance, Rebalance, Reservation, Spot, Stopping};
    let running = body(STATE, &json!({ "instance-id": "i-1", "state": "running" }));
    let rows: [MessageCase<'_>; 14] = [
        (of_instance(SPOT, "i-1"), &[("i-1", Spot)], true),
        (of_instance(RESERVATION, "i-1"), &[("i-1", Reservation)], true),
        (of_instance(REBALANCE, "i-2"), &[("i-2", Rebalance)], true),
        (of_instance(STATE, "i-1"), &[("i-1", Stopping)], true),
        (
            health(&["i-1", "vol-1", "i-9", "i-2"]),
            &[("i-1", Maintenance), ("i-2", Maintenance)],
            true,
        ),
        (running, &[], true),
        ("hello".to_owned(), &[], true),
        ("{}".to_owned(), &[], true),
        (of_instance("EC2 Instance Launch Successful", "i-1"), &[], true),
        (body(SPOT, &json!({})), &[], true),
        // The instance does not have our installation's tag.
        (of_instance(SPOT, "i-9"), &[], true),
        // An instance of another host, alone or among others: the message is processed and
        // returned.
        (of_instance(SPOT, "i-far"), &[], false),
        (health(&["i-far"]), &[], false),
        (health(&["i-1", "i-far"]), &[("i-1", Maintenance)], false),
    ];
    for (message, events, deleted) in rows {
        // A returned message is delivered again after a second.
        let outcome = receive(std::slice::from_ref(&message), 1).await;
        let place = BTreeSet::from([0]);
        let events = events.iter().map(|(id, what)| ((*id).to_owned(), *what));
        let expect = Handled {
            events: events.collect(),
            deleted: if deleted { place.clone() } else { [].into() },
            returned: if deleted { [].into() } else { place },
        };
        assert_eq!(outcome, expect, "{message}");
    }
}

/// A duplicate message is processed twice, which is harmless. An unreadable message does not block
/// the rest of a batch.
#[tokio::test(start_paused = true)]
async fn messages_of_a_batch_are_handled_separately() {
    let messages = [
        of_instance(SPOT, "i-1"),
        "hello".to_owned(),
        of_instance(SPOT, "i-1"),
        of_instance(SPOT, "i-far"),
        of_instance(STATE, "i-2"),
    ];
    let outcome = receive(&messages, 1).await;
    let ids = outcome.events.iter().map(|(id, _)| id.as_str());
    assert_eq!(ids.collect::<Vec<_>>(), ["i-1", "i-1", "i-2"]);
    assert_eq!(outcome.deleted, [0, 1, 2, 4].into());
    assert_eq!(outcome.returned, [3].into());
}

/// A host that was suspended until its Lease expired may resume with messages in hand: it neither
/// deletes nor returns any of them.
#[tokio::test(start_paused = true)]
async fn host_without_leadership_deletes_no_messages() {
    let messages = ["i-1", "i-far"].map(|id| of_instance(SPOT, id));
    let lapsed = Fence::default();
    let span = Duration::from_secs(1);
    let now = Moment::now();
    let steady = now.steady.checked_sub(span).expect("a time");
    lapsed.open(Moment { steady, ..now }, span);
    let outcome = receive_behind(lapsed, &messages, 15).await;
    let expect =
        Handled { events: vec![("i-1".to_owned(), Interruption::Spot)], ..Handled::default() };
    assert_eq!(outcome, expect);

    // A daemon in observe mode leaves all messages to other hosts.
    let observes = Fence::default();
    observes.close();
    let unknown = of_instance(SPOT, "i-unknown");
    let messages = [messages[1].clone(), unknown, "no message".to_owned()];
    let outcome = receive_behind(observes, &messages, 15).await;
    assert_eq!(outcome.returned, [0, 1, 2].into());
    assert_eq!(outcome.deleted, BTreeSet::new());
}

/// A region loses its spot capacity: all messages are received together.
#[tokio::test(start_paused = true)]
async fn one_thousand_messages_are_delivered_within_seconds() {
    let messages = vec![of_instance(SPOT, "i-1"); 1000];
    assert_eq!(receive(&messages, 1).await.events.len(), 1000);
    assert_eq!(receive(&messages, 15).await.deleted.len(), 1000);
}

/// A message that the engine does not accept, or whose cluster cannot be determined, is neither
/// deleted nor returned. SQS delivers it again.
#[tokio::test(start_paused = true)]
async fn unhandled_message_is_neither_deleted_nor_returned() {
    for (full, fails) in [(true, None), (false, Some(("DescribeInstances", "Unavailable")))] {
        let (sqs, aws) = aws(&[of_instance(SPOT, "i-1")]);
        sqs.lock().expect("no panic").fails = fails;
        let (events, inbox) = mpsc::channel(1);
        if full {
            let filler = Event::Timeout;
            events.send(filler).await.expect("room for one");
        }
        let task =
            tokio::spawn(listener(aws.account(REGION), engines(events, Fence::default())).listen());
        sleep(Duration::from_secs(15)).await;
        task.abort();
        let operations = aws.operations();
        assert!(operations.contains("ReceiveMessage"), "{operations}");
        for operation in ["DeleteMessage", "ChangeMessageVisibility"] {
            assert!(!operations.contains(operation), "{operations}");
        }
        drop(inbox);
    }
}

/// The notice of an instance that no listing shows yet is not deleted: it is delivered again when
/// EC2 lists each launched instance. Wall clocks stand still here, so that the notice stays new.
#[tokio::test(start_paused = true)]
async fn notice_of_a_new_instance_is_kept_until_the_instance_is_listed() {
    for (listed_after, seconds, deliveries) in [(5, 15, 2), (30, 80, 3), (900, 800, 8)] {
        let sent = clock::now().to_string();
        let body = of_instance(SPOT, "i-new").replace("2026-01-01T00:00:00Z", &sent);
        let (sqs, aws) = aws(&[body]);
        let (events, notices) = engine(Duration::ZERO);
        let reader = listener(aws.account(REGION), engines(events, Fence::default()));
        let task = tokio::spawn(reader.listen());
        let queue = sqs.clone();
        tokio::spawn(async move {
            sleep(Duration::from_secs(listed_after)).await;
            queue.lock().expect("no panic").instances.push(("i-new", "one"));
        });
        sleep(Duration::from_secs(seconds)).await;
        task.abort();
        let message = &sqs.lock().expect("no panic").messages[0];
        assert_eq!((message.deleted, message.deliveries), (true, deliveries));
        let heard = notices.lock().expect("no panic").len();
        assert_eq!(heard, usize::from(listed_after < seconds), "{listed_after}");
    }
}

/// A message is deleted only when the engine has handled it, and is not delivered meanwhile. If the
/// engine never handles the message, SQS delivers it again.
#[tokio::test(start_paused = true)]
async fn message_is_deleted_when_the_engine_has_handled_it() {
    for (handled_after, deleted, deliveries) in [(0, true, 1), (100, true, 1), (1000, false, 2)] {
        let (sqs, aws) = aws(&[of_instance(SPOT, "i-1")]);
        let (events, _) = engine(Duration::from_secs(handled_after));
        let reader = listener(aws.account(REGION), engines(events, Fence::default()));
        let task = tokio::spawn(reader.listen());
        sleep(Duration::from_secs(handled_after / 2)).await;
        assert!(!sqs.lock().expect("no panic").messages[0].deleted || handled_after == 0);
        sleep(Duration::from_secs(handled_after / 2 + 1)).await;
        task.abort();
        let message = &sqs.lock().expect("no panic").messages[0];
        let found = (message.deleted, message.deliveries.min(2));
        assert_eq!(found, (deleted, deliveries), "{handled_after}");
    }
}

/// Neither messages that no host takes, nor an engine that accepts no events, nor an expired
/// receipt delay a notice.
#[tokio::test(start_paused = true)]
async fn other_messages_do_not_delay_a_notice() {
    let mut messages = vec![of_instance(SPOT, "i-far"); 1200];
    messages.insert(3, of_instance(SPOT, "i-full"));
    let (sqs, aws) = aws(&messages);
    {
        let mut sqs = sqs.lock().expect("no panic");
        sqs.instances.push(("i-full", "full"));
        sqs.expires = Some(5);
    }
    let (events, notices) = engine(Duration::ZERO);
    let (full, _inbox) = mpsc::channel(1);
    full.send(Event::Timeout).await.expect("room for one");
    let engines = engines(events, Fence::default());
    let other = (full, Fence::default());
    engines.lock().expect("no panic").insert("full".into(), other);
    let task = tokio::spawn(listener(aws.account(REGION), engines).listen());
    for _ in 0..5 {
        sleep(Duration::from_secs(60)).await;
        let sent = sqs.lock().expect("no panic").messages.len();
        sqs.lock().expect("no panic").send(&of_instance(SPOT, "i-1"));
        sleep(Duration::from_secs(10)).await;
        let sqs = sqs.lock().expect("no panic");
        assert!(sqs.messages[sent].deleted, "not handled within 10 s");
    }
    task.abort();
    assert_eq!(notices.lock().expect("no panic").len(), 5);
    let sqs = sqs.lock().expect("no panic");
    let deliveries = sqs.messages.iter().filter(|it| !it.deleted).map(|it| it.deliveries);
    // Thirty in ten minutes at most, after the prompt ones.
    assert!(deliveries.max() < Some(40));
}

/// A queue that does not exist or is not accessible is polled with increasing delays, and read
/// again when it is accessible.
#[tokio::test(start_paused = true)]
async fn inaccessible_queue_is_retried_with_back_off() {
    let rows = [
        ("GetQueueUrl", "QueueDoesNotExist", ErrorClass::NotFound),
        ("GetQueueUrl", "AccessDeniedException", ErrorClass::Denied),
        ("ReceiveMessage", "AccessDeniedException", ErrorClass::Denied),
    ];
    for (operation, code, sort) in rows {
        let (sqs, aws) = aws(&[of_instance(SPOT, "i-1")]);
        sqs.lock().expect("no panic").fails = Some((operation, code));
        let account = aws.account(REGION);
        let fault = match operation {
            "GetQueueUrl" => sqs::queue_url(&account, "q").await.expect_err("a fault"),
            _ => sqs::receive_messages(&account, "https://queue.test/1/q")
                .await
                .expect_err("a fault"),
        };
        let failure = fault.to_failure("sqs");
        assert_eq!(failure.sort, sort, "{code}");
        assert!(failure.text.contains(operation), "{failure:?}");
        let statement = failure.text.contains("AllowInterruptionQueueActions");
        assert_eq!(statement, sort == ErrorClass::Denied, "{failure:?}");
        let (events, mut inbox) = mpsc::channel(10);
        let task = tokio::spawn(listener(account, engines(events, Fence::default())).listen());
        aws.take_requests();
        sleep(Duration::from_secs(300)).await;
        let tried =
            aws.take_requests().iter().filter(|request| request.operation == operation).count();
        assert!((5..=15).contains(&tried), "{tried} times");
        sqs.lock().expect("no panic").fails = None;
        let before = clock::monotonic_now();
        let event = inbox.recv().await.expect("an event");
        assert!(matches!(event, Event::Interrupted(..)));
        assert!(before.elapsed() <= Duration::from_secs(61));
        task.abort();
    }
}
