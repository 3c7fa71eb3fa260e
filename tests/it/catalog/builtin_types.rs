//! The built-in types, compared with an external table.

use std::collections::{BTreeMap, BTreeSet};

use super::{GIB, MIB, SHIPPED, get, label};
use crate::catalog::shape;
use outrigger::catalog::capacity::{allocatable, default_node_class};

/// Data from the reference page of Karpenter's AWS provider.
const TABLE: &str = include_str!("instance-types.csv");

/// Rows in which the page is older than the list in its source code: type, label, value on the
/// page, value in the list.
const OLDER: [(&str, &str, &str, &str); 3] = [
    ("g7.2xlarge", "network-bandwidth", "60000", "40000"),
    ("g7.4xlarge", "network-bandwidth", "60000", "80000"),
    ("g7.8xlarge", "network-bandwidth", "80000", "100000"),
];

/// Returns the rows of the table by type, each with its fields by column.
fn rows() -> BTreeMap<&'static str, BTreeMap<&'static str, &'static str>> {
    let mut lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(fields.len(), header.len(), "{line}");
            let name = fields[0];
            (name, header.iter().copied().zip(fields).collect())
        })
        .collect()
}

/// Every shipped type has the allocatable resources and labels of the page. Types on only one side
/// are printed. The clock speeds of the shipped table are from the page itself.
#[test]
fn every_shipped_type_equals_karpenters_reference_page() {
    let (rows, catalog) = (rows(), &SHIPPED.1);
    let ours: BTreeSet<&str> = catalog.types().map(|it| it.name.as_str()).collect();
    let theirs: BTreeSet<&str> = rows.keys().copied().collect();
    let mut wrong = Vec::new();
    let mut older = 0;
    for name in ours.intersection(&theirs) {
        let (it, row) = (get(catalog, name), &rows[name]);
        let left = &it.allocatable;
        let mut check = |what: &str, ours: String, theirs: &str| {
            if ours != theirs {
                wrong.push(format!("{name} {what}: {ours}, not {theirs}"));
            }
        };
        check("cpu", left.cpu_milli.to_string(), row["cpu_milli"]);
        let mib = format!("{}", left.memory / MIB);
        check("memory", mib, row["memory_mib"]);
        check("memory", (left.memory % MIB).to_string(), "0");
        check("pods", left.pods.to_string(), row["pods"]);
        let disk = format!("{}", left.ephemeral_storage / GIB);
        check("disk", disk, row["disk_gib"]);
        check("disk", (left.ephemeral_storage % GIB).to_string(), "0");
        let branches = match row["branch_enis_later"] {
            "" => row["branch_enis"],
            later => {
                older += 1;
                later
            }
        };
        for (resource, theirs) in [
            ("vpc.amazonaws.com/pod-eni", branches),
            ("vpc.amazonaws.com/efa", row["efa"]),
            ("nvidia.com/gpu", row["nvidia"]),
            ("amd.com/gpu", row["amd"]),
            ("aws.amazon.com/neuron", row["neuron"]),
            ("aws.amazon.com/neuroncore", row["neuroncore"]),
        ] {
            let own = left.extended.get(resource);
            let own = own.map(ToString::to_string).unwrap_or_default();
            check(resource, own, theirs);
        }
        check("arch", label(it, "kubernetes.io/arch"), row["arch"]);
        for (column, theirs) in row {
            let later = OLDER.iter().find(|(own, key, ..)| own == name && key == column);
            let theirs = later.map_or(*theirs, |(_, _, page, list)| {
                older += 1;
                assert_eq!(theirs, page, "{name}");
                list
            });
            let own = label(it, &format!("aws/{column}"));
            // Columns that are no labels are checked above.
            if own != "?" && !(own == "-" && theirs.is_empty()) {
                check(column, own, theirs);
            }
        }
    }
    let lacking: Vec<&&str> = theirs.difference(&ours).collect();
    let unknown: Vec<&&str> = ours.difference(&theirs).collect();
    println!(
        "{} types compared, {} mismatches; {older} values are from the later source of the page; \
         {} only on the page: {lacking:?}; {} only shipped: {unknown:?}",
        ours.intersection(&theirs).count(),
        wrong.len(),
        lacking.len(),
        unknown.len(),
    );
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!((ours.len(), theirs.len(), older), (1340, 1363, 59));
    assert_eq!((lacking.len(), unknown.len()), (23, 0));
}

/// The golden rows of spec/aws.md §4.4, computed by the formulas alone.
#[test]
fn allocatable_formulas_give_the_golden_rows() {
    let rows = [
        ("a1.medium", 940, 1392, 8, ""),
        ("m5.large", 1930, 6903, 29, ""),
        ("c6g.large", 1930, 3055, 29, ""),
        ("m5.24xlarge", 95690, 355_262, 737, ""),
        ("g5.12xlarge", 47810, 173_400, 737, "nvidia.com/gpu=4"),
        ("p5.48xlarge", 191_450, 1_938_410, 100, "vpc.amazonaws.com/efa=32"),
        (
            "trn1.32xlarge",
            127_610,
            481_894,
            247,
            "aws.amazon.com/neuron=16 aws.amazon.com/neuroncore=32",
        ),
    ];
    for (name, cpu, mib, pods, extended) in rows {
        let left = allocatable(&shape(name), &default_node_class(), None);
        let own = (left.cpu_milli, left.memory, left.pods);
        assert_eq!(own, (cpu, mib * MIB, pods), "{name}");
        assert_eq!(left.ephemeral_storage, 17 * GIB, "{name}");
        for (resource, amount) in extended.split(' ').filter_map(|own| own.split_once('=')) {
            assert_eq!(left.get(resource).to_string(), amount, "{name} {resource}");
        }
    }
}
