//! Tests of all views and sizes, and of the keys. The responses of the daemon are test data.

use std::borrow::Cow;

use insta::{assert_snapshot, with_settings};
use jiff::{SignedDuration, Timestamp};
use proptest::collection::vec;
use proptest::prelude::{any, prop_assert, proptest};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::Color;

use super::app::{Action, App, Key, Settings, View};
use super::command::node_sort;
use super::daemon_data::{DaemonRequest, DaemonResponse};
use super::render::{draw_screen, table_rows};
use super::{nodes_view, terminal};
use crate::engine::views::inventory::Amount;
use crate::engine::views::status::{
    ClusterStatus, Paused, PoolStatus, SweepFindings, SweepStatus, Unaccepted,
};
use crate::runtime::activity_log::ActivityEntry;
use crate::runtime::control_inventory::{Holds, InventoryRequest, NodeDto, ToldInventory, ToldPod};
use crate::runtime::control_status::{ClusterStatusResponse, StatusResponse};
use crate::text::sanitize::is_unsafe;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Returns the time this number of seconds before [`NOW`].
fn ago(seconds: i64) -> Timestamp {
    NOW - SignedDuration::from_secs(seconds)
}

fn settings() -> Settings {
    Settings {
        interval: SignedDuration::from_secs(2),
        labels: vec!["example.com/team".to_owned()],
        resources: vec!["cpu".to_owned(), "memory".to_owned()],
        has_colour: true,
        ..Settings::default()
    }
}

/// Four clusters: healthy with sweeps, unhealthy, paused, and led by a different host.
fn fleet() -> StatusResponse {
    let status = |nodes, unready_nodes, waiting_pods, unplaced_pods| ClusterStatus {
        mode: "manage".to_owned(),
        nodes,
        unready_nodes,
        waiting_pods,
        unplaced_pods,
        cost_per_hour: 1.25 * f64::from(u32::try_from(nodes).unwrap_or(0)),
        pools: vec![PoolStatus {
            name: "general".to_owned(),
            configured: true,
            ready: nodes,
            starting: 1,
            ..PoolStatus::default()
        }],
        ..ClusterStatus::default()
    };
    let cluster = |name: &str, standing: &str, is_well, status| ClusterStatusResponse {
        name: name.to_owned(),
        standing: standing.to_owned(),
        is_well,
        led_by: None,
        status,
    };
    let mut paused = status(12, 0, 0, 0);
    paused.paused = Some(Paused {
        until: Some(NOW + SignedDuration::from_hours(2)),
        reason: "a release\u{1b}[2J".to_owned(),
    });
    let mut held = status(140, 3, 7, 2);
    held.held_by = Some("the watch of pods is silent".to_owned());
    held.unaccepted = Some(Unaccepted { id: "k3".to_owned(), nodes: 70, total: 140 });
    let mut swept = status(3, 0, 1, 0);
    swept.sweeps = vec![SweepStatus {
        kind: "drift".to_owned(),
        last: Some(ago(600)),
        next: Some(NOW),
        overdue: true,
        found: Some(SweepFindings { disrupted: 1, blocked: 2, observed: 0 }),
    }];
    let mut standby = cluster("west", "on standby", true, None);
    standby.led_by = Some("host-b leads it".to_owned());
    StatusResponse {
        format_version: "1.0".to_owned(),
        outrigger: "0.1.0".to_owned(),
        reload_fault: None,
        clusters: vec![
            standby,
            cluster("east", "ready", false, Some(swept)),
            cluster("north", "ready", false, Some(held)),
            cluster("south", "ready", true, Some(paused)),
        ],
    }
}

/// A node, by its number.
fn node(number: i64) -> NodeDto {
    let taken = |there, tenths| Amount { taken: there * tenths / 10, there };
    let is_large = number % 3 == 0;
    NodeDto {
        name: format!("ip-10-0-{}-{number}.ec2.internal", number % 4),
        pool: Some(if is_large { "batch" } else { "general" }.to_owned()),
        instance_type: Some(if is_large { "m7i.4xlarge" } else { "t4g.small" }.to_owned()),
        zone: Some(format!("eu-west-1{}", ["a", "b"][usize::from(is_large)])),
        capacity_type: Some(if is_large { "spot" } else { "on-demand" }.to_owned()),
        labels: vec![is_large.then(|| "search".to_owned())],
        amounts: vec![taken(2_000, number % 11), taken(8 << 30, (number + 4) % 11)],
        pods: usize::try_from(number % 17).unwrap_or(0),
        born: Some(ago(number * 4_000 + 30)),
        usd_per_h: Some(if is_large { 0.8064 } else { 0.0168 }),
        state: "ready".to_owned(),
        is_well: true,
        why: Some("kept (underutilized): the saving is too small".to_owned()),
    }
}

/// A claim without a node.
fn launching_claim() -> NodeDto {
    NodeDto {
        name: "pdvyhwi7bkq3y".to_owned(),
        pool: Some("general".to_owned()),
        instance_type: Some("t4g.small".to_owned()),
        labels: vec![None],
        amounts: vec![Amount::default(); 2],
        pods: 3,
        born: Some(ago(7)),
        state: "launching".to_owned(),
        ..NodeDto::default()
    }
}

fn waiting_pod(name: &str, seconds: i64, is_unplaced: bool, why: &str) -> ToldPod {
    ToldPod {
        name: format!("shop/{name}"),
        since: Some(ago(seconds)),
        is_unplaced,
        why: why.to_owned(),
    }
}

fn activity(seconds: i64, what: &'static str, of: &str, text: &str) -> ActivityEntry {
    ActivityEntry {
        at: ago(seconds),
        warns: what == "drain blocked",
        what: Cow::Borrowed(what),
        of: of.to_owned(),
        text: text.to_owned(),
        times: if what == "evicted pod" { 14 } else { 1 },
    }
}

/// The inventory of `east`.
fn inventory() -> ToldInventory {
    let mut nodes: Vec<NodeDto> = (1..40).map(node).collect();
    nodes[0].state = "draining: drifted".to_owned();
    nodes[0].is_well = false;
    nodes[0].why = None;
    nodes.push(launching_claim());
    let offering = "pool general: t4g.small eu-west-1a on-demand at $0.0168/h for 3 pods";
    let short = "pool general: needs cpu 64; the largest of 12 types has 16 [resources]";
    let amount = |taken, there| Amount { taken, there };
    ToldInventory {
        name: "east".to_owned(),
        standing: "ready".to_owned(),
        holds: Some(Holds {
            nodes,
            more_nodes: 60,
            pods: vec![
                waiting_pod("web-7d4b9-x2x", 12, false, "new node for it: claim pdvyhwi7bkq3y"),
                waiting_pod("train-0", 7_500, true, short),
            ],
            more_pods: 0,
            amounts: vec![amount(45_200, 198_000), amount(120 << 30, 792 << 30)],
            bound_pods: 311,
            usd_per_h: 12.345,
        }),
        timeline: vec![
            activity(3, "planned claim", "pdvyhwi7bkq3y", offering),
            activity(64, "evicted pod", "shop/web-1", "node drifted"),
            activity(300, "drain blocked", "ip-10-0-1-1", "for 5m: pod shop/db-0 is on it"),
            activity(9_000, "ready", "", "starting decisions"),
        ],
        ..ToldInventory::default()
    }
}

/// A screen that has received all responses one second ago.
fn screen(settings: Settings) -> App {
    let mut screen = App::new(settings);
    screen.data.store_response(DaemonResponse::Fleet(fleet()), ago(1));
    let response = DaemonResponse::Inside(Box::new(inventory()));
    screen.data.store_response(response, ago(1));
    screen
}

/// Presses keys, and returns the action of the last key.
fn press(screen: &mut App, keys: &[Key]) -> Action {
    let none = Action::Nothing;
    keys.iter().fold(none, |_, key| screen.handle_key(*key, NOW))
}

fn rendered(screen: &mut App, size: (u16, u16)) -> String {
    let (columns, lines) = size;
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("no fault");
    let rendered = terminal.draw(|frame| {
        screen.set_page_rows(table_rows(lines));
        draw_screen(screen, frame.area(), frame.buffer_mut(), NOW);
    });
    rendered.expect("no fault");
    terminal.backend().to_string()
}

const SIZES: [(u16, u16); 4] = [(120, 30), (80, 24), (40, 10), (20, 5)];

fn snapshot(name: &str, screen: &mut App, size: (u16, u16)) {
    let text = rendered(screen, size);
    let (columns, lines) = size;
    with_settings!({
        snapshot_path => "snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        assert_snapshot!(format!("{name}-{columns}x{lines}"), text);
    });
}

#[test]
fn views_adapt_to_the_screen_size() {
    let names = ["fleet", "nodes", "pods", "timeline"];
    for (view, name) in View::ALL.into_iter().zip(names) {
        for size in SIZES {
            let mut screen = screen(settings());
            press(&mut screen, &[Key::View(view)]);
            snapshot(name, &mut screen, size);
        }
    }
}

#[test]
fn unreachable_daemon_is_shown_with_time_since_last_response() {
    let mut screen = screen(settings());
    press(&mut screen, &[Key::View(View::Nodes)]);
    let why = "open the socket /run/outrigger/admin.sock: start the daemon".to_owned();
    screen.data.fault = Some(why);
    for size in [(80, 24), (20, 5), (20, 1)] {
        snapshot("gone", &mut screen, size);
    }
    let response = DaemonResponse::Inside(Box::new(inventory()));
    screen.data.store_response(response, NOW);
    let shown = rendered(&mut screen, (80, 24));
    assert!(!shown.contains("no response"), "{shown}");
}

#[test]
fn late_response_is_shown_unless_paused() {
    let mut screen = App::new(settings());
    screen.data.store_response(DaemonResponse::Fleet(fleet()), ago(90));
    assert!(rendered(&mut screen, (80, 24)).contains("no response for 1m30s"));
    assert_eq!(press(&mut screen, &[Key::Pause]), Action::Nothing);
    let shown = rendered(&mut screen, (80, 24));
    assert!(shown.contains("paused") && !shown.contains("no response"), "{shown}");
    assert_eq!(press(&mut screen, &[Key::Pause]), Action::Ask);
}

#[test]
fn no_colours_are_used_when_disabled() {
    let colours = |has_colour: bool| {
        let mut screen = screen(Settings { has_colour, ..settings() });
        press(&mut screen, &[Key::View(View::Nodes)]);
        let area = Rect::new(0, 0, 120, 30);
        let mut buffer = Buffer::empty(area);
        draw_screen(&screen, area, &mut buffer, NOW);
        let cells = buffer.content.iter();
        cells.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert!(colours(true) > 0);
    assert_eq!(colours(false), 0);
}

#[test]
fn keys_change_the_view_and_the_request() {
    let mut screen = screen(settings());
    assert_eq!(screen.next_request(), DaemonRequest::Fleet);
    assert_eq!(press(&mut screen, &[Key::NextView]), Action::Ask);
    let request_for = |cluster: &str| {
        DaemonRequest::Inside(InventoryRequest {
            cluster: cluster.to_owned(),
            labels: settings().labels,
            resources: settings().resources,
        })
    };
    assert_eq!(screen.next_request(), request_for("east"));
    assert_eq!(press(&mut screen, &[Key::NextCluster]), Action::Ask);
    assert_eq!(screen.next_request(), request_for("north"));
    assert!(rendered(&mut screen, (80, 24)).contains("waiting for the daemon"));
    press(&mut screen, &[Key::PreviousCluster, Key::PreviousCluster]);
    assert_eq!(screen.next_request(), request_for("west"));
    press(&mut screen, &[Key::PreviousView, Key::Down, Key::Down, Key::Open]);
    assert_eq!((screen.view, screen.next_request()), (View::Nodes, request_for("south")));
    assert_eq!(press(&mut screen, &[Key::View(View::Nodes)]), Action::Nothing);
    assert_eq!(press(&mut screen, &[Key::Quit]), Action::Quit);
}

#[test]
fn selection_follows_its_row_when_rows_move() {
    let mut screen = screen(settings());
    press(&mut screen, &[Key::View(View::Nodes)]);
    screen.set_page_rows(10);
    let chosen = |screen: &App| {
        let table = screen.current_table(NOW);
        table.rows[screen.selected_index(&table)].key.clone()
    };
    let newest = chosen(&screen);
    assert_eq!(newest, "pdvyhwi7bkq3y", "the newest node is first");
    press(&mut screen, &[Key::PageDown, Key::Up]);
    let ninth = chosen(&screen);
    assert_eq!(ninth, node(9).name);
    press(&mut screen, &[Key::Reverse, Key::Sort]);
    assert_eq!(chosen(&screen), ninth);
    press(&mut screen, &[Key::Last]);
    let table = screen.current_table(NOW);
    assert_eq!(screen.selected_index(&table), 39);
    let mut fewer = inventory();
    if let Some(holds) = &mut fewer.holds {
        holds.nodes.truncate(2);
    }
    screen.data.store_response(DaemonResponse::Inside(Box::new(fewer)), NOW);
    assert_eq!(screen.selected_index(&screen.current_table(NOW)), 1);
    press(&mut screen, &[Key::First]);
    assert_eq!(screen.selected_index(&screen.current_table(NOW)), 0);
}

#[test]
fn nodes_are_sorted_by_the_requested_key() {
    let request = InventoryRequest {
        labels: vec!["team".to_owned()],
        resources: vec!["cpu".to_owned()],
        ..InventoryRequest::default()
    };
    let keys = nodes_view::sort_keys(&request);
    let check = |text: &str, expect: Option<(&str, bool)>| {
        let order = node_sort(text, &keys).ok();
        let order = order.as_ref().map(|(key, is_descending)| (key.as_str(), *is_descending));
        assert_eq!(order, expect, "{text}");
    };
    check("price=dsc", Some(("price", true)));
    check("cpu", Some(("cpu", false)));
    check("team=desc", Some(("team", true)));
    check("creation=dsc", Some(("age", false)));
    check("creation", Some(("age", true)));
    check("price=up", None);
    check("memory", None);
    let mut screen = screen(Settings { node_sort: Some(("price".to_owned(), true)), ..settings() });
    press(&mut screen, &[Key::View(View::Nodes)]);
    let table = screen.current_table(NOW);
    assert!(table.rows[0].cells[7 + 2].text.starts_with("0.80"), "{:?}", table.rows[0]);
}

#[test]
fn only_the_requested_cluster_is_shown() {
    let mut screen = screen(Settings { only: Some("north".to_owned()), ..settings() });
    let shown = rendered(&mut screen, (120, 30));
    assert!(shown.contains("north") && !shown.contains("south"), "{shown}");
    assert!(shown.contains("1 cluster ") && shown.contains("the watch of pods is silent"));
}

#[test]
fn control_characters_in_names_are_not_drawn() {
    let mut data = inventory();
    if let Some(holds) = &mut data.holds {
        holds.nodes.truncate(1);
        holds.nodes[0].name = "a\u{1b}[2J\u{202e}b\nc".to_owned();
    }
    let mut screen = screen(settings());
    screen.data.store_response(DaemonResponse::Inside(Box::new(data)), NOW);
    press(&mut screen, &[Key::View(View::Nodes)]);
    let shown = rendered(&mut screen, (120, 30));
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
    assert!(shown.contains("a [2J b c"), "{shown}");
}

#[test]
fn key_bindings_match_similar_tools() {
    let check = |code: KeyCode, modifiers: KeyModifiers, expect: Option<Key>| {
        let pressed = terminal::key_command(KeyEvent::new(code, modifiers));
        assert_eq!(pressed, expect, "{code:?} {modifiers:?}");
    };
    let plain = KeyModifiers::NONE;
    check(KeyCode::Char('c'), KeyModifiers::CONTROL, Some(Key::Quit));
    check(KeyCode::Char('c'), plain, None);
    check(KeyCode::Esc, plain, Some(Key::Quit));
    check(KeyCode::Char('j'), plain, Some(Key::Down));
    check(KeyCode::Left, plain, Some(Key::PageUp));
    check(KeyCode::BackTab, KeyModifiers::SHIFT, Some(Key::PreviousView));
    check(KeyCode::Char('4'), plain, Some(Key::View(View::Timeline)));
}

/// All keys.
const KEYS: [Key; 19] = [
    Key::Up,
    Key::Down,
    Key::PageUp,
    Key::PageDown,
    Key::First,
    Key::Last,
    Key::NextView,
    Key::PreviousView,
    Key::View(View::Fleet),
    Key::View(View::Nodes),
    Key::View(View::Pods),
    Key::View(View::Timeline),
    Key::NextCluster,
    Key::PreviousCluster,
    Key::Open,
    Key::Sort,
    Key::Reverse,
    Key::Pause,
    Key::Quit,
];

/// An inventory with unusual values.
fn unusual_inventory(text: &str, number: i64) -> ToldInventory {
    let at = Timestamp::from_second(number % 200_000_000_000).ok();
    let amount = Amount { taken: number, there: number.wrapping_mul(7) };
    let node = NodeDto {
        name: text.to_owned(),
        zone: Some(text.to_owned()),
        amounts: vec![amount; 3],
        born: at,
        state: text.to_owned(),
        ..NodeDto::default()
    };
    let pod =
        ToldPod { name: text.to_owned(), since: at, why: text.to_owned(), ..ToldPod::default() };
    let line = ActivityEntry {
        at: at.unwrap_or(NOW),
        warns: true,
        what: Cow::Owned(text.to_owned()),
        of: text.to_owned(),
        text: text.to_owned(),
        times: 2,
    };
    ToldInventory {
        name: "east".to_owned(),
        holds: Some(Holds {
            nodes: vec![node],
            pods: vec![pod],
            amounts: vec![amount],
            ..Holds::default()
        }),
        timeline: vec![line],
        ..ToldInventory::default()
    }
}

proptest! {
    #[test]
    fn any_key_sequence_and_screen_size_is_drawn_safely(
        steps in vec((0..KEYS.len() + 4, 0u16..150, 0u16..40), 1..30),
        text in any::<String>(),
        number in any::<i64>(),
    ) {
        let mut screen = App::new(settings());
        for (what, columns, lines) in steps {
            match KEYS.get(what) {
                Some(key) => {
                    screen.handle_key(*key, NOW);
                }
                None => {
                    let answer = match what - KEYS.len() {
                        0 => Some(DaemonResponse::Fleet(fleet())),
                        1 => Some(DaemonResponse::Inside(Box::new(inventory()))),
                        2 => {
                            let unusual = unusual_inventory(&text, number);
                            Some(DaemonResponse::Inside(Box::new(unusual)))
                        }
                        _ => None,
                    };
                    match answer {
                        Some(answer) => screen.data.store_response(answer, NOW),
                        None => screen.data.fault = Some(text.clone()),
                    }
                }
            }
            let area = Rect::new(0, 0, columns, lines);
            let mut buffer = Buffer::empty(area);
            screen.set_page_rows(table_rows(lines));
            draw_screen(&screen, area, &mut buffer, NOW);
            let mut letters = buffer.content.iter().flat_map(|cell| cell.symbol().chars());
            prop_assert!(!letters.any(is_unsafe), "a control character was drawn");
            let is_drawn = buffer.content.iter().any(|cell| cell.symbol() != " ");
            prop_assert!(is_drawn || area.is_empty(), "{columns}x{lines}: the screen is empty");
        }
    }
}
