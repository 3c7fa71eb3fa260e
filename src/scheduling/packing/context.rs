//! Input and state of packing.

use std::cell::OnceCell;

use crate::model::cluster::Scheduling;
use crate::scheduling::domains::DomainSet;
use crate::scheduling::domains::distribute::DomainAllocation;
use crate::scheduling::index::{
    CounterIndex, DomainIndex, FilterIndex, IndexVec, KindIndex, LocationIndex, OpenedNodeIndex,
    PodClassIndex, RequirementsIndex, RowIndex, TemplateIndex, TypeIndex,
};
use crate::scheduling::packing::PackedNode;
use crate::scheduling::packing::existing_nodes::PlacementStep;
use crate::scheduling::packing::fill_bin::{ItemGroup, ItemGroups};
use crate::scheduling::packing::launch_options::Ledgers;
use crate::scheduling::problem::Problem;
use crate::scheduling::supply::compatible::{CompatibleOfferings, LabelMatch};
use crate::scheduling::supply::node_template::NodeTemplate;
use crate::scheduling::topology::Topology;
use crate::scheduling::topology::node_counters::NodeConstraintTable;

/// Requirements of pods on the offerings of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OfferingQuery {
    /// Node requirements of the pods.
    pub(crate) wants: RequirementsIndex,
    /// Whether `PreferNoSchedule` is relaxed.
    pub(crate) relaxed: bool,
    /// The domain, or `None` if any domain is suitable.
    pub(crate) cell: Option<DomainIndex>,
}

/// A claim with its pool.
#[derive(Clone, Debug)]
pub(crate) struct OpenedNode {
    /// Index of the pool's template.
    pub(crate) template: TemplateIndex,
    /// The claim.
    pub(crate) claim: PackedNode,
    /// Whether the claim was dropped.
    pub(crate) gone: bool,
}

impl OpenedNode {
    /// Returns a claim of the pool with this template.
    pub(crate) fn new(template: TemplateIndex, claim: PackedNode) -> Self {
        Self { template, claim, gone: false }
    }
}

/// Item groups, and the compatible offerings to which they refer.
#[derive(Clone, Copy)]
pub(crate) struct ItemOfferings<'i> {
    pub(crate) lots: &'i ItemGroups<'i>,
    pub(crate) rows: &'i IndexVec<RowIndex, CompatibleOfferings>,
}

/// The placement of all pods.
#[derive(Clone)]
pub(crate) struct PackingState<'p, 'a> {
    /// Pools by weight, then name.
    pub(crate) templates: &'p IndexVec<TemplateIndex, NodeTemplate<'a>>,
    /// Remaining limits by template.
    pub(crate) ledgers: Ledgers,
    /// Placements on existing nodes, in a valid bind order.
    pub(crate) placed: Vec<PlacementStep>,
    /// Assignments to domains, in a valid bind order.
    pub(crate) dealt: Vec<DomainAllocation>,
    /// Number of existing and in-flight nodes.
    pub(crate) rooms: usize,
    /// New nodes.
    pub(crate) opened: IndexVec<OpenedNodeIndex, OpenedNode>,
    /// Item groups that claims refer to.
    pub(crate) lots: ItemGroups<'p>,
    /// Unscheduled pods by class.
    pub(crate) left: IndexVec<PodClassIndex, u64>,
    /// Whether the step limit was reached.
    pub(crate) cut_short: bool,
}

impl PackingState<'_, '_> {
    /// Returns the item groups together with their offerings, `rows`.
    pub(crate) fn item_offerings<'i>(
        &'i self,
        rows: &'i IndexVec<RowIndex, CompatibleOfferings>,
    ) -> ItemOfferings<'i> {
        ItemOfferings { lots: &self.lots, rows }
    }

    /// Returns the location of a new node. Locations of new nodes follow those of the existing
    /// nodes.
    pub(crate) fn location_of(&self, opened: OpenedNodeIndex) -> LocationIndex {
        LocationIndex(self.rooms + opened.0)
    }

    /// Returns the number of unscheduled pods.
    pub(crate) fn unscheduled_pods(&self) -> u64 {
        self.left.iter().sum()
    }

    /// Returns the new nodes that were not dropped.
    pub(crate) fn kept_nodes(&self) -> impl Iterator<Item = &OpenedNode> {
        self.opened.iter().filter(|opened| !opened.gone)
    }
}

/// Immutable input of packing.
pub(crate) struct PackingContext<'p, 'a> {
    pub(crate) problem: &'p Problem<'a>,
    pub(crate) topology: &'p Topology,
    pub(crate) hosts: &'p NodeConstraintTable,
    pub(crate) cells: &'p DomainSet,
    pub(crate) templates: &'p IndexVec<TemplateIndex, NodeTemplate<'a>>,
    /// The scheduling options.
    pub(crate) scheduling: &'p Scheduling,
    /// Types that pass each filter, computed on demand.
    pub(crate) passing: IndexVec<FilterIndex, OnceCell<FilterMatches>>,
    /// DaemonSet pods that certainly run on one more node in each domain, by counter. Computed on
    /// demand.
    pub(crate) daemon_overheads: IndexVec<DomainIndex, OnceCell<Vec<(CounterIndex, u32)>>>,
}

impl<'p> PackingContext<'p, '_> {
    /// Returns the kind of a class without preferences.
    pub(crate) fn hard_kind(&self, class: PodClassIndex) -> KindIndex {
        let problem = self.problem;
        problem.without_preferences(problem.classes[class].kind)
    }

    /// Returns the number of alternative requirements of a kind.
    pub(crate) fn alternatives_of(&self, kind: KindIndex) -> usize {
        self.problem.wants_of(kind).alternatives.len()
    }

    /// Returns the requirements of pods of a kind on the offerings of a node.
    pub(crate) fn offering_query(
        &self,
        kind: KindIndex,
        relaxed: bool,
        cell: Option<DomainIndex>,
    ) -> OfferingQuery {
        OfferingQuery { wants: self.problem.kinds[kind].wants, relaxed, cell }
    }

    /// Returns the item group of a class of a kind, without domain.
    pub(crate) fn item_group(
        &self,
        class: PodClassIndex,
        kind: KindIndex,
        row: RowIndex,
    ) -> ItemGroup<'p> {
        let pod_class = &self.problem.classes[class];
        ItemGroup {
            class,
            kind,
            demand: &pod_class.demand,
            per_unit: &pod_class.per_unit,
            shares: &self.hosts.shares[kind],
            row,
            cell: None,
            together: 1,
        }
    }

    /// Returns whether pods of a kind need a domain.
    pub(crate) fn needs_domain(&self, kind: KindIndex) -> bool {
        self.topology.needs_domain_first(kind) && !self.cells.keys.is_empty()
    }
}

/// For each pool and alternative, the types with matching labels. `None` if the pool itself does
/// not match.
pub(crate) type FilterMatches =
    IndexVec<TemplateIndex, Vec<Option<IndexVec<TypeIndex, LabelMatch>>>>;
