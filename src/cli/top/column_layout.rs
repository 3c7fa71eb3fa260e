//! Chooses the columns that fit on the screen, and their widths.

/// The width constraints of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColumnWidth {
    /// The minimum width.
    pub least: usize,
    /// The width at which the column is useful. Less important columns are hidden to reach this
    /// width.
    pub fair: usize,
    /// The width of the widest cell.
    pub wanted: usize,
    /// The rank: columns with a greater rank are hidden first.
    pub leaves: u8,
}

impl ColumnWidth {
    fn least(&self) -> usize {
        self.least.min(self.wanted)
    }

    fn fair(&self) -> usize {
        self.fair.max(self.least).min(self.wanted)
    }
}

/// A visible column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The index of the column.
    pub column: usize,
    /// The position of its first character.
    pub at: usize,
    /// The width of the column.
    pub width: usize,
}

/// Columns up to this rank are shrunk before they are hidden.
const CORE: u8 = 3;

/// Arranges columns with a gap between them on a screen of this width. The most important column is
/// always visible, even if it is cut.
pub fn fit_columns(claims: &[ColumnWidth], gap: usize, width: usize) -> Vec<Slot> {
    let mut chosen: Vec<usize> = (0..claims.len()).collect();
    for (core, width_of) in [
        (CORE, ColumnWidth::fair as fn(&ColumnWidth) -> usize),
        (0, ColumnWidth::least as fn(&ColumnWidth) -> usize),
    ] {
        while chosen.len() > 1 && total_width(claims, &chosen, gap, width_of) > width {
            let last =
                (0..chosen.len()).max_by_key(|index| (claims[chosen[*index]].leaves, *index));
            let Some(last) = last.filter(|index| claims[chosen[*index]].leaves > core) else {
                break;
            };
            chosen.remove(last);
        }
    }
    let least = total_width(claims, &chosen, gap, ColumnWidth::least);
    let widths = distribute_widths(claims, &chosen, width.saturating_sub(least));
    let mut at = 0;
    let slots = chosen.into_iter().zip(widths).map(|(column, wanted)| {
        let slot = Slot { column, at, width: wanted.min(width.saturating_sub(at)) };
        at += slot.width + gap;
        slot
    });
    slots.filter(|slot| slot.width > 0).collect()
}

/// Returns the width of the chosen columns and the gaps between them.
fn total_width(
    claims: &[ColumnWidth],
    chosen: &[usize],
    gap: usize,
    width_of: fn(&ColumnWidth) -> usize,
) -> usize {
    let widths = chosen.iter().map(|column| width_of(&claims[*column]));
    widths.sum::<usize>() + gap * chosen.len().saturating_sub(1)
}

/// Distributes the free width `left` over the columns, the most important first: each gets its
/// fair width, then its wanted width.
fn distribute_widths(claims: &[ColumnWidth], chosen: &[usize], mut left: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = chosen.iter().map(|it| claims[*it].least()).collect();
    let mut order: Vec<usize> = (0..chosen.len()).collect();
    order.sort_by_key(|index| claims[chosen[*index]].leaves);
    for width_of in [
        ColumnWidth::fair as fn(&ColumnWidth) -> usize,
        (|claim| claim.wanted) as fn(&ColumnWidth) -> usize,
    ] {
        for index in &order {
            let wanted = width_of(&claims[chosen[*index]]);
            let more = wanted.saturating_sub(widths[*index]).min(left);
            widths[*index] += more;
            left -= more;
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::{ColumnWidth, fit_columns};

    /// Minimum, fair and wanted width of a column, and its rank.
    type ColumnSpec = (usize, usize, usize, u8);

    fn check(claims: &[ColumnSpec], width: usize, expect: &[(usize, usize, usize)]) {
        let claims: Vec<ColumnWidth> = claims
            .iter()
            .map(|(least, fair, wanted, leaves)| ColumnWidth {
                least: *least,
                fair: *fair,
                wanted: *wanted,
                leaves: *leaves,
            })
            .collect();
        let slots = fit_columns(&claims, 1, width);
        let slots = slots.iter().map(|slot| (slot.column, slot.at, slot.width));
        assert_eq!(slots.collect::<Vec<_>>(), expect, "{claims:?} in {width}");
    }

    #[test]
    fn columns_that_do_not_fit_are_dropped_and_others_grow() {
        let three = [(4, 4, 10, 0), (4, 4, 4, 2), (4, 4, 20, 1)];
        check(&three, 100, &[(0, 0, 10), (1, 11, 4), (2, 16, 20)]);
        check(&three, 18, &[(0, 0, 8), (1, 9, 4), (2, 14, 4)]);
        check(&three, 13, &[(0, 0, 8), (2, 9, 4)]);
        check(&three, 8, &[(0, 0, 8)]);
        check(&three, 2, &[(0, 0, 2)]);
        check(&three, 0, &[]);
        check(&[], 10, &[]);
    }

    #[test]
    fn low_ranked_columns_are_dropped_before_others_get_narrow() {
        let three = [(4, 8, 10, 0), (4, 4, 4, 9), (4, 6, 9, 1)];
        check(&three, 20, &[(0, 0, 8), (1, 9, 4), (2, 14, 6)]);
        check(&three, 19, &[(0, 0, 10), (2, 11, 8)]);
        check(&three, 11, &[(0, 0, 6), (2, 7, 4)]);
    }
}
