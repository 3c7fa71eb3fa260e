//! The state of the screen, and how keys change it.

use jiff::{SignedDuration, Timestamp};

use super::daemon_data::{DaemonData, DaemonRequest};
use super::table::Table;
use super::{activity_view, fleet_view, nodes_view, pods_view};
use crate::runtime::control_inventory::InventoryRequest;

/// The views of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// All clusters.
    #[default]
    Fleet,
    /// The nodes of a cluster.
    Nodes,
    /// The pending pods of a cluster.
    Pods,
    /// The recent activity of a cluster.
    Timeline,
}

impl View {
    /// All views, in the order of their tabs.
    pub const ALL: [Self; 4] = [Self::Fleet, Self::Nodes, Self::Pods, Self::Timeline];

    /// The title of the view.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Nodes => "nodes",
            Self::Pods => "pending pods",
            Self::Timeline => "timeline",
        }
    }

    /// The position of the view in [`View::ALL`].
    pub fn index(self) -> usize {
        match self {
            Self::Fleet => 0,
            Self::Nodes => 1,
            Self::Pods => 2,
            Self::Timeline => 3,
        }
    }

    fn nth_after(self, by: usize) -> Self {
        Self::ALL[(self.index() + by) % Self::ALL.len()]
    }
}

/// The commands that keys stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Select the row above.
    Up,
    /// Select the row below.
    Down,
    /// Select the row one page above.
    PageUp,
    /// Select the row one page below.
    PageDown,
    /// Select the first row.
    First,
    /// Select the last row.
    Last,
    /// Show the next view.
    NextView,
    /// Show the previous view.
    PreviousView,
    /// Show this view.
    View(View),
    /// Select the next cluster.
    NextCluster,
    /// Select the previous cluster.
    PreviousCluster,
    /// Open the selected cluster.
    Open,
    /// Sort by the next column.
    Sort,
    /// Reverse the sort order.
    Reverse,
    /// Stop or resume requests.
    Pause,
    /// Quit.
    Quit,
}

/// The action of the event loop after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Continue the loop.
    Nothing,
    /// The screen needs different data: request it now.
    Ask,
    /// Leave the loop.
    Quit,
}

/// The settings from the command line.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The only cluster to show, if one was chosen.
    pub only: Option<String>,
    /// The time between two requests.
    pub interval: SignedDuration,
    /// The node labels that are shown as columns.
    pub labels: Vec<String>,
    /// The resources whose usage is shown.
    pub resources: Vec<String>,
    /// The sort key of the nodes, and whether the order is descending.
    pub node_sort: Option<(String, bool)>,
    /// True if styles may use colours.
    pub has_colour: bool,
}

/// The sort order and the selection of one view.
#[derive(Clone, Debug, Default)]
struct ViewState {
    sorted_by: String,
    is_descending: bool,
    /// The key of the selected row, which stays selected when it moves. An empty key selects the
    /// first row.
    chosen: String,
    /// The last position of the selected row, used when the row disappears.
    place: usize,
}

impl ViewState {
    /// Creates the state of a view that is sorted by this column.
    fn new(sorted_by: &str, is_descending: bool) -> Self {
        Self { sorted_by: sorted_by.to_owned(), is_descending, ..Self::default() }
    }
}

/// The state of the screen.
#[derive(Debug)]
pub struct App {
    /// The last responses of the daemon.
    pub data: DaemonData,
    /// The settings from the command line.
    pub settings: Settings,
    /// The current view.
    pub view: View,
    /// True while requests for data are paused.
    pub is_paused: bool,
    cluster: Option<String>,
    view_states: [ViewState; 4],
    /// The rows of one page.
    page: usize,
}

impl App {
    /// Creates the state before the first response.
    pub fn new(settings: Settings) -> Self {
        let nodes = match &settings.node_sort {
            Some((key, is_descending)) => ViewState::new(key, *is_descending),
            None => ViewState::new("age", false),
        };
        Self {
            data: DaemonData::default(),
            cluster: settings.only.clone(),
            view: View::Fleet,
            is_paused: false,
            view_states: [
                ViewState::new("cluster", false),
                nodes,
                ViewState::new("waiting", true),
                ViewState::new("ago", false),
            ],
            page: 1,
            settings,
        }
    }

    /// Returns the request for the current view.
    pub fn next_request(&self) -> DaemonRequest {
        match (self.view, self.selected_cluster()) {
            (View::Fleet, _) | (_, None) => DaemonRequest::Fleet,
            (_, Some(cluster)) => DaemonRequest::Inside(self.inventory_request(cluster)),
        }
    }

    fn inventory_request(&self, cluster: String) -> InventoryRequest {
        InventoryRequest {
            cluster,
            labels: self.settings.labels.clone(),
            resources: self.settings.resources.clone(),
        }
    }

    /// Returns the selected cluster, or the first one.
    pub fn selected_cluster(&self) -> Option<String> {
        self.cluster.clone().or_else(|| {
            let all = self.data.clusters(self.settings.only.as_deref());
            all.first().map(|cluster| cluster.name.clone())
        })
    }

    /// Sets the number of rows that fit on the screen.
    pub fn set_page_rows(&mut self, rows: usize) {
        self.page = rows.max(1);
    }

    /// Builds the sorted table of the current view.
    pub fn current_table(&self, now: Timestamp) -> Table {
        let cluster = self.selected_cluster().unwrap_or_default();
        let inventory = self.data.inventory_of(&cluster);
        let mut table = match self.view {
            View::Fleet => fleet_view::fleet_table(&self.data, self.settings.only.as_deref()),
            View::Nodes => {
                nodes_view::nodes_table(inventory, &self.inventory_request(cluster), now)
            }
            View::Pods => pods_view::pods_table(inventory, now),
            View::Timeline => activity_view::activity_table(inventory, now),
        };
        let (column, is_descending) = self.sort_order(&table);
        table.sort_rows(column, is_descending);
        table
    }

    /// Returns the sort column of a table, and whether the order is descending.
    pub fn sort_order(&self, table: &Table) -> (usize, bool) {
        let state = self.view_state();
        let column = table.column_index(&state.sorted_by).unwrap_or(0);
        (column, state.is_descending)
    }

    /// Returns the index of the selected row.
    pub fn selected_index(&self, table: &Table) -> usize {
        let state = self.view_state();
        if state.chosen.is_empty() {
            return 0;
        }
        let found = table.rows.iter().position(|row| row.key == state.chosen);
        let last = table.rows.len().saturating_sub(1);
        found.unwrap_or(state.place.min(last))
    }

    fn view_state(&self) -> &ViewState {
        &self.view_states[self.view.index()]
    }

    fn view_state_mut(&mut self) -> &mut ViewState {
        &mut self.view_states[self.view.index()]
    }

    /// Handles a key.
    pub fn handle_key(&mut self, key: Key, now: Timestamp) -> Action {
        match key {
            Key::Quit => return Action::Quit,
            Key::Pause => {
                self.is_paused = !self.is_paused;
                return if self.is_paused { Action::Nothing } else { Action::Ask };
            }
            Key::View(view) => return self.change_view(view, now),
            Key::NextView => return self.change_view(self.view.nth_after(1), now),
            Key::PreviousView => {
                return self.change_view(self.view.nth_after(View::ALL.len() - 1), now);
            }
            Key::Open if self.view == View::Fleet => return self.change_view(View::Nodes, now),
            Key::Open => {}
            Key::NextCluster => return self.switch_cluster(1),
            Key::PreviousCluster => return self.switch_cluster(usize::MAX),
            Key::Sort => self.sort_by_next_column(now),
            Key::Reverse => {
                let state = self.view_state_mut();
                state.is_descending = !state.is_descending;
            }
            Key::Up => self.move_selection(|at, _| at.saturating_sub(1), now),
            Key::Down => self.move_selection(|at, _| at.saturating_add(1), now),
            Key::PageUp => self.move_selection(usize::saturating_sub, now),
            Key::PageDown => self.move_selection(usize::saturating_add, now),
            Key::First => self.view_state_mut().chosen.clear(),
            Key::Last => self.move_selection(|_, _| usize::MAX, now),
        }
        Action::Nothing
    }

    /// Changes the view. From the fleet view, opens the selected cluster.
    fn change_view(&mut self, view: View, now: Timestamp) -> Action {
        if view == self.view {
            return Action::Nothing;
        }
        if self.view == View::Fleet {
            let table = self.current_table(now);
            let row = table.rows.get(self.selected_index(&table));
            let chosen = row.map(|row| row.key.clone());
            self.select_cluster(chosen);
        }
        self.view = view;
        Action::Ask
    }

    /// Selects a cluster. If the cluster changes, selects the first row in each of its views.
    fn select_cluster(&mut self, cluster: Option<String>) {
        if cluster.is_none() || cluster == self.cluster {
            return;
        }
        self.cluster = cluster;
        for state in self.view_states.iter_mut().skip(1) {
            state.chosen.clear();
        }
    }

    /// Selects the next cluster if `by` is 1, else the previous one, cyclically.
    fn switch_cluster(&mut self, by: usize) -> Action {
        if self.view == View::Fleet {
            return Action::Nothing;
        }
        let all = self.data.clusters(self.settings.only.as_deref());
        let names: Vec<String> = all.iter().map(|cluster| cluster.name.clone()).collect();
        let current = self.selected_cluster();
        let at = names.iter().position(|name| Some(name) == current.as_ref());
        let Some(at) = at.filter(|_| names.len() > 1) else {
            return Action::Nothing;
        };
        let step = if by == 1 { 1 } else { names.len() - 1 };
        self.select_cluster(names.get((at + step) % names.len()).cloned());
        Action::Ask
    }

    /// Sorts by the next column, in ascending order.
    fn sort_by_next_column(&mut self, now: Timestamp) {
        let table = self.current_table(now);
        let (column, _) = self.sort_order(&table);
        let next = (column + 1) % table.columns.len().max(1);
        if let Some(column) = table.columns.get(next) {
            let key = column.key.clone();
            let state = self.view_state_mut();
            (state.sorted_by, state.is_descending) = (key, false);
        }
    }

    /// Selects the row that `to` computes from the selected row and the page size.
    fn move_selection(&mut self, to: impl Fn(usize, usize) -> usize, now: Timestamp) {
        let table = self.current_table(now);
        let last = table.rows.len().saturating_sub(1);
        let index = to(self.selected_index(&table), self.page).min(last);
        let key = table.rows.get(index).map(|row| row.key.clone());
        let state = self.view_state_mut();
        state.place = index;
        // A selection at the top stays at the top when rows are inserted.
        state.chosen = key.filter(|_| index > 0).unwrap_or_default();
    }
}
