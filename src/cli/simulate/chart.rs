//! The charts of a run as SVG: instances, pods, cost, utilization and events over time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{PathElement, Polygon, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, RGBColor, TextStyle};

use crate::model::id::TypeName;
use crate::model::instance::CapacityType;
use crate::sim::samples::WorldSample;
use crate::sim::timeline::{TimelineEntry, TimelineFact};

/// Sizes in pixels. Each panel has its legend on the right.
const WIDTH: u32 = 1000;
const PANEL: u32 = 170;
const EVENTS: u32 = 130;
const LEFT: u32 = 110;
const LEGEND: u32 = 210;
const TOP: u32 = 26;
/// Maximum number of points of a line: the plot does not have enough pixels for more.
const POINTS_MAX: usize = 600;
/// The number of instance types with their own colour: the types with the most instance minutes.
/// All other types share a colour.
const TYPES_MAX: usize = 6;

/// Colours that are distinguishable with any colour blindness (Okabe and Ito, 2008), without
/// yellow, which is not visible on white. [`STYLE`] has the colours for a dark page.
const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const ORANGE: RGBColor = RGBColor(0xe6, 0x9f, 0x00);
const GREEN: RGBColor = RGBColor(0x00, 0x9e, 0x73);
const RED: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
const PURPLE: RGBColor = RGBColor(0xcc, 0x79, 0xa7);
const SKY: RGBColor = RGBColor(0x56, 0xb4, 0xe9);
const GREY: RGBColor = RGBColor(0x99, 0x99, 0x99);
const DARK_GREY: RGBColor = RGBColor(0x66, 0x66, 0x66);
const SERIES: [RGBColor; TYPES_MAX] = [BLUE, ORANGE, GREEN, PURPLE, SKY, RED];
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);

/// Replaces the light colours by dark ones if the reader's system prefers a dark page.
const STYLE: &str = "<style>@media screen and (prefers-color-scheme: dark) {\
    [fill=\"#222222\"]{fill:#dddddd}[stroke=\"#222222\"]{stroke:#dddddd}\
    [fill=\"#DDDDDD\"]{fill:#3a3f44}[stroke=\"#DDDDDD\"]{stroke:#3a3f44}\
    [fill=\"#FFFFFF\"]{fill:#15181b}[fill=\"#56B4E9\"]{fill:#a6d8f5}\
    [fill=\"#0072B2\"]{fill:#4aa3df}[stroke=\"#0072B2\"]{stroke:#4aa3df}\
    }</style>";

/// The data of the charts.
pub(super) struct Day<'a> {
    /// The start of the run and of the time axis.
    pub(super) start: Timestamp,
    /// One sample per minute.
    pub(super) samples: &'a [WorldSample],
    /// All entries of the timeline.
    pub(super) lines: &'a [TimelineEntry],
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), anyhow::Error>;

impl Day<'_> {
    /// Returns the charts as one SVG element, for a file or for embedding in HTML.
    pub(super) fn render_svg(&self) -> anyhow::Result<String> {
        let mut svg = String::new();
        {
            let size = (WIDTH, 4 * PANEL + EVENTS);
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            root.fill(&PAPER)?;
            let (upper, events) = root.split_vertically(4 * PANEL);
            let panels = upper.split_evenly((4, 1));
            let [instances, pods, cost, used] = panels.as_slice() else {
                anyhow::bail!("cannot split the picture into four panels");
            };
            let points = self.plotted_samples();
            self.draw_instances(instances, &points)?;
            for (area, (title, lines)) in [pods, cost, used].into_iter().zip(&PANELS) {
                self.draw_lines(area, title, &points, lines)?;
            }
            self.draw_events(&events)?;
            root.present()?;
        }
        // The style is inserted after the opening tag.
        let at = svg.find('>').map_or(svg.len(), |at| at + 1);
        svg.insert_str(at, STYLE);
        Ok(svg)
    }

    /// Reduces the samples to the plotted points: of each interval, the sample with the most
    /// pending pods.
    fn plotted_samples(&self) -> Vec<&WorldSample> {
        let chunk_size = self.samples.len().div_ceil(POINTS_MAX).max(1);
        let chunks = self.samples.chunks(chunk_size);
        let busiest = chunks.filter_map(|chunk| chunk.iter().max_by_key(|chunk| chunk.pending));
        busiest.collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
    fn hours_since_start(&self, at: Timestamp) -> f64 {
        at.duration_since(self.start).as_secs() as f64 / 3600.0
    }

    fn total_hours(&self) -> f64 {
        let last = self.samples.last();
        last.map_or(1.0, |sample| self.hours_since_start(sample.at)).max(0.1)
    }

    /// Draws a panel with axes for values up to `max`.
    fn draw_panel<'a, 'b>(
        &self,
        area: &'a Area<'b>,
        title: &str,
        max: f64,
    ) -> anyhow::Result<Chart<'a, 'b>> {
        area.draw(&Text::new(title.to_owned(), (8, 6), bold_style()))?;
        let max = if max > 0.0 { max * 1.05 } else { 1.0 };
        let mut chart = ChartBuilder::on(area)
            .margin_top(TOP)
            .margin_right(LEGEND)
            .set_left_and_bottom_label_area_size(0)
            .x_label_area_size(22)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(0.0..self.total_hours(), 0.0..max)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(13)
            .y_labels(4)
            .x_label_formatter(&|hours| self.time_of_day(*hours))
            .y_label_formatter(&|value| format_axis_value(*value))
            .label_style(plain_style())
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(PAPER.mix(0.0))
            .draw()?;
        Ok(chart)
    }

    /// Formats the time of day at `hours` after the start of the run.
    fn time_of_day(&self, hours: f64) -> String {
        #[expect(clippy::cast_possible_truncation, reason = "some days of seconds")]
        let seconds = (hours * 3600.0).round() as i64;
        let after = jiff::SignedDuration::from_secs(seconds);
        let at = self.start.checked_add(after).unwrap_or(self.start);
        at.strftime("%H:%M").to_string()
    }

    fn draw_instances(&self, area: &Area<'_>, points: &[&WorldSample]) -> Drawn {
        let max = points.iter().map(|point| point.live_instances()).max().unwrap_or(0);
        let mut chart = self.draw_panel(area, "Instances by type", count_to_f64(max))?;
        let kinds = instance_series(self.samples);
        let mut below = vec![0.0; points.len()];
        let mut legend = Vec::new();
        for (index, kind) in kinds.iter().enumerate() {
            let colour = kind.series_colour(index);
            let above = points.iter().zip(&below);
            let above: Vec<f64> = above
                .map(|(point, below)| below + count_to_f64(count_instances(point, kind, &kinds)))
                .collect();
            let hours = points.iter().map(|point| self.hours_since_start(point.at));
            let upper = hours.clone().zip(above.iter().copied());
            let lower = hours.zip(below.iter().copied());
            let lower: Vec<(f64, f64)> = lower.collect();
            let outline: Vec<(f64, f64)> = upper.chain(lower.into_iter().rev()).collect();
            let shape = Polygon::new(outline, colour.mix(0.85).filled());
            chart.draw_series([shape])?;
            below = above;
            legend.push((kind.legend_text(), colour));
        }
        legend.reverse();
        draw_legend(area, &legend)
    }

    fn draw_lines(
        &self,
        area: &Area<'_>,
        title: &str,
        points: &[&WorldSample],
        all: &[Series],
    ) -> Drawn {
        let values =
            all.iter().flat_map(|(_, _, value_of)| points.iter().map(|point| value_of(point)));
        let max = values.fold(0.0, f64::max);
        let mut chart = self.draw_panel(area, title, max)?;
        for (_, colour, value_of) in all {
            let line =
                points.iter().map(|point| (self.hours_since_start(point.at), value_of(point)));
            chart.draw_series([PathElement::new(
                line.collect::<Vec<_>>(),
                colour.stroke_width(2),
            )])?;
        }
        let legend = all.iter().map(|(name, colour, _)| ((*name).to_owned(), *colour));
        draw_legend(area, &legend.collect::<Vec<_>>())
    }

    /// Draws one row for each kind of event, with a mark for each minute that has an event.
    fn draw_events(&self, area: &Area<'_>) -> Drawn {
        area.draw(&Text::new("Events".to_owned(), (8, 2), bold_style()))?;
        let (width, height) = area.dim_in_pixel();
        let right = width.saturating_sub(LEGEND);
        let step = height.saturating_sub(22) / ROWS_COUNT;
        for (index, (name, colour, is_it)) in (0..).zip(ROWS) {
            let top = 20 + to_pixels(step) * index;
            let middle = top + to_pixels(step) / 2;
            area.draw(&Text::new(
                name.to_owned(),
                (to_pixels(LEFT) - 8, middle),
                right_aligned_style(),
            ))?;
            let ends = vec![(to_pixels(LEFT), middle), (to_pixels(right), middle)];
            area.draw(&PathElement::new(ends, GRID.stroke_width(1)))?;
            let shown = self.lines.iter().filter(|line| is_it(&line.fact));
            let count = shown.clone().count();
            let places = shown.map(|line| {
                let wide = f64::from(right.saturating_sub(LEFT));
                #[expect(clippy::cast_possible_truncation, reason = "a place in a picture")]
                let at =
                    (self.hours_since_start(line.at) / self.total_hours() * wide).round() as i32;
                to_pixels(LEFT) + at
            });
            let marks: BTreeSet<i32> = places.filter(|at| *at <= to_pixels(right)).collect();
            for at in marks {
                let corners = [(at - 1, top + 2), (at + 1, top + to_pixels(step) - 2)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
            }
            let text =
                Text::new(count.to_string(), (to_pixels(right) + 14, middle), left_aligned_style());
            area.draw(&text)?;
        }
        Ok(())
    }
}

/// A line of a panel: its name, its colour, and the value that it shows.
type Series = (&'static str, RGBColor, fn(&WorldSample) -> f64);

/// The line panels from top to bottom, with their titles and lines.
const PANELS: [(&str, [Series; 2]); 3] = [
    (
        "Pods",
        [
            ("running", BLUE, |sample| count_to_f64(sample.running)),
            ("pending", RED, |sample| count_to_f64(sample.pending)),
        ],
    ),
    (
        "US dollars per hour",
        [
            ("this run", BLUE, |it| it.usd_per_h),
            ("fixed fleet of one type", ORANGE, |it| it.fixed_usd_per_h),
        ],
    ),
    (
        "Requested share of allocatable, %",
        [
            ("CPU", BLUE, |sample| sample.cpu_share * 100.0),
            ("memory", ORANGE, |sample| sample.memory_share * 100.0),
        ],
    ),
];

/// A row of events: its name, its colour, and a function that selects its facts.
type EventRow = (&'static str, RGBColor, fn(&TimelineFact) -> bool);

const ROWS_COUNT: u32 = 5;
const ROWS: [EventRow; ROWS_COUNT as usize] = [
    ("workloads scaled", INK, |fact| matches!(fact, TimelineFact::Scaled { .. })),
    ("instances launched", GREEN, |fact| matches!(fact, TimelineFact::Launched { .. })),
    ("nodes disrupted", BLUE, |fact| matches!(fact, TimelineFact::Leaving { .. })),
    ("spot interrupted", ORANGE, |fact| {
        matches!(fact, TimelineFact::Interrupted { .. } | TimelineFact::Lost { .. })
    }),
    ("rejected, faults", RED, |fact| {
        matches!(
            fact,
            TimelineFact::Refused { .. }
                | TimelineFact::Stock { left: Some(_), .. }
                | TimelineFact::Fault(_)
                | TimelineFact::Held { .. }
                | TimelineFact::Frozen(_)
                | TimelineFact::Stopped
        )
    }),
];

/// Instances that share a colour: instances of one type and capacity type, or all other instances
/// of one capacity type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InstanceSeries {
    capacity_type: CapacityType,
    name: Option<TypeName>,
}

impl InstanceSeries {
    fn legend_text(&self) -> String {
        let name = self.name.as_ref().map_or("other", TypeName::as_str);
        format!("{name} {}", self.capacity_type.as_str())
    }

    fn series_colour(&self, index: usize) -> RGBColor {
        match (&self.name, self.capacity_type) {
            (Some(_), _) => SERIES.get(index).copied().unwrap_or(GREY),
            (None, CapacityType::Spot) => GREY,
            (None, _) => DARK_GREY,
        }
    }
}

/// Returns the series from the bottom of the panel to the top: first the types with their own
/// colour, then all others by capacity type.
fn instance_series(samples: &[WorldSample]) -> Vec<InstanceSeries> {
    let mut minutes: BTreeMap<&(CapacityType, TypeName), usize> = BTreeMap::new();
    for (kind, count) in samples.iter().flat_map(|sample| &sample.instances) {
        *minutes.entry(kind).or_default() += count;
    }
    let mut all: Vec<_> = minutes.into_iter().collect();
    all.sort_by_key(|(kind, count)| (Reverse(*count), *kind));
    let (named, others) = all.split_at(all.len().min(TYPES_MAX));
    let named = named.iter().map(|((capacity_type, name), _)| InstanceSeries {
        capacity_type: *capacity_type,
        name: Some(name.clone()),
    });
    let mut kinds: Vec<InstanceSeries> = named.collect();
    kinds.sort();
    let bought: BTreeSet<CapacityType> = others.iter().map(|((it, _), _)| *it).collect();
    let others =
        bought.into_iter().map(|capacity_type| InstanceSeries { capacity_type, name: None });
    kinds.extend(others);
    kinds
}

/// Counts the instances of a series in a sample.
fn count_instances(sample: &WorldSample, kind: &InstanceSeries, kinds: &[InstanceSeries]) -> usize {
    let instances = sample.instances.iter();
    let of_kind = instances.filter(|((capacity_type, name), _)| {
        *capacity_type == kind.capacity_type
            && match &kind.name {
                Some(wanted) => wanted == name,
                None => !kinds.iter().any(|named| {
                    named.capacity_type == *capacity_type && named.name.as_ref() == Some(name)
                }),
            }
    });
    of_kind.map(|(_, count)| count).sum()
}

/// Draws the legend of a panel: names with their colours.
fn draw_legend(area: &Area<'_>, all: &[(String, RGBColor)]) -> Drawn {
    let left = to_pixels(WIDTH - LEGEND) + 14;
    for (index, (name, colour)) in (0..).zip(all) {
        let top = to_pixels(TOP) + 18 * index;
        let corners = [(left, top), (left + 12, top + 12)];
        area.draw(&Rectangle::new(corners, colour.filled()))?;
        let text = Text::new(name.clone(), (left + 20, top + 6), left_aligned_style());
        area.draw(&text)?;
    }
    Ok(())
}

fn text_style(size: f64, style: FontStyle) -> TextStyle<'static> {
    let font = FontDesc::new(FontFamily::SansSerif, size, style);
    TextStyle::from(font).color(&INK)
}

fn plain_style() -> TextStyle<'static> {
    text_style(12.0, FontStyle::Normal)
}

fn bold_style() -> TextStyle<'static> {
    text_style(14.0, FontStyle::Bold)
}

/// Left-aligned, vertically centred text.
fn left_aligned_style() -> TextStyle<'static> {
    plain_style().pos(Pos::new(HPos::Left, VPos::Center))
}

/// Right-aligned, vertically centred text.
fn right_aligned_style() -> TextStyle<'static> {
    plain_style().pos(Pos::new(HPos::Right, VPos::Center))
}

fn to_pixels(length: u32) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
pub(super) fn count_to_f64(count: usize) -> f64 {
    count as f64
}

/// Formats a number of an axis without trailing zeros.
fn format_axis_value(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
