package report

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
)

// Plot is some curves over the same positions. Its values are medians.
type Plot struct {
	File   string // name of the SVG file
	Title  string
	X, Y   string   // what the axes show
	Labels []string // of the positions
	Curves []Curve
	// Logarithmic draws the values by their order of magnitude.
	Logarithmic bool
	// Bars draws a bar for each value, where positions have no order.
	Bars bool
}

// Curve is one line; a position without a value holds NaN.
type Curve struct {
	Name   string
	Values []float64
}

// Sizes of a plot, in pixels.
const (
	plotWidth, plotHeight           = 720, 420
	marginLeft, marginRight         = 80, 170
	marginTop, marginBottom         = 44, 56
	innerWidth                      = plotWidth - marginLeft - marginRight
	innerHeight                     = plotHeight - marginTop - marginBottom
	axisStyle                       = `stroke="#999" stroke-width="1"`
	gridStyle                       = `stroke="#ddd" stroke-width="1"`
	textStyle                       = `font-family="sans-serif" font-size="12" fill="#333"`
	gridLines               float64 = 5
)

// colours that people with any sight tell apart (Okabe and Ito).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// WriteSVG draws the plot.
func (p Plot) WriteSVG(w io.Writer) error {
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n", plotWidth, plotHeight, plotWidth, plotHeight)
	fmt.Fprintf(&svg, `<rect width="100%%" height="100%%" fill="#fff"/><text x="%d" y="24" %s font-weight="bold">%s</text>`+"\n", marginLeft, textStyle, html.EscapeString(p.Title))
	scale := p.scale()
	p.grid(&svg, scale)
	for i, c := range p.Curves {
		colour := colours[i%len(colours)]
		if p.Bars {
			p.bars(&svg, scale, i, c, colour)
		} else {
			p.line(&svg, scale, c, colour)
		}
		y := marginTop + 18*i
		fmt.Fprintf(&svg, `<rect x="%d" y="%d" width="14" height="4" fill="%s"/><text x="%d" y="%d" %s>%s</text>`+"\n",
			plotWidth-marginRight+14, y, colour, plotWidth-marginRight+34, y+6, textStyle, html.EscapeString(c.Name))
	}
	svg.WriteString("</svg>\n")
	if _, err := io.WriteString(w, svg.String()); err != nil {
		return fmt.Errorf("report: plot: %w", err)
	}
	return nil
}

// scale is where values stand.
type scale struct {
	low, high   float64
	logarithmic bool
}

func (p Plot) scale() scale {
	s := scale{low: math.Inf(1), logarithmic: p.Logarithmic}
	for _, c := range p.Curves {
		for _, v := range c.Values {
			if !math.IsNaN(v) {
				s.low, s.high = min(s.low, v), max(s.high, v)
			}
		}
	}
	if !s.logarithmic {
		s.low, s.high = 0, s.step()*gridLines
		return s
	}
	s.low, s.high = math.Pow(10, math.Floor(math.Log10(s.low))), math.Pow(10, math.Ceil(math.Log10(s.high)))
	return s
}

// step is a round number, of which gridLines reach above the highest value.
func (s scale) step() float64 {
	raw := s.high * 1.02 / gridLines
	size := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, n := range []float64{1, 2, 2.5, 5, 10} {
		if n*size >= raw {
			return n * size
		}
	}
	return raw
}

// y returns the height of a value, counted from the top of the picture.
func (s scale) y(v float64) float64 {
	part := (v - s.low) / (s.high - s.low)
	if s.logarithmic {
		part = math.Log10(v/s.low) / math.Log10(s.high/s.low)
	}
	return marginTop + innerHeight*(1-part)
}

// marks are the values that have a line of the grid.
func (s scale) marks() []float64 {
	var marks []float64
	if !s.logarithmic {
		for i := range int(gridLines) + 1 {
			marks = append(marks, s.high*float64(i)/gridLines)
		}
		return marks
	}
	for v := s.low; v <= s.high*1.001; v *= 10 {
		marks = append(marks, v)
	}
	return marks
}

func (p Plot) x(i int) float64 {
	return marginLeft + innerWidth*(float64(i)+0.5)/float64(len(p.Labels))
}

func (p Plot) grid(svg *strings.Builder, s scale) {
	for _, v := range s.marks() {
		y := s.y(v)
		fmt.Fprintf(svg, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" %s/><text x="%d" y="%.1f" %s text-anchor="end">%s</text>`+"\n",
			marginLeft, y, marginLeft+innerWidth, y, gridStyle, marginLeft-8, y+4, textStyle, number(v))
	}
	for i, label := range p.Labels {
		fmt.Fprintf(svg, `<text x="%.1f" y="%d" %s text-anchor="middle">%s</text>`+"\n", p.x(i), marginTop+innerHeight+18, textStyle, html.EscapeString(label))
	}
	fmt.Fprintf(svg, `<line x1="%d" y1="%d" x2="%d" y2="%d" %s/>`+"\n", marginLeft, marginTop+innerHeight, marginLeft+innerWidth, marginTop+innerHeight, axisStyle)
	fmt.Fprintf(svg, `<text x="%d" y="%d" %s text-anchor="middle">%s</text>`+"\n", marginLeft+innerWidth/2, plotHeight-14, textStyle, html.EscapeString(p.X))
	fmt.Fprintf(svg, `<text transform="translate(18 %d) rotate(-90)" %s text-anchor="middle">%s</text>`+"\n", marginTop+innerHeight/2, textStyle, html.EscapeString(p.Y))
}

func (p Plot) line(svg *strings.Builder, s scale, c Curve, colour string) {
	var points []string
	for i, v := range c.Values {
		if math.IsNaN(v) {
			continue
		}
		points = append(points, fmt.Sprintf("%.1f,%.1f", p.x(i), s.y(v)))
		fmt.Fprintf(svg, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`, p.x(i), s.y(v), colour)
	}
	fmt.Fprintf(svg, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), colour)
}

func (p Plot) bars(svg *strings.Builder, s scale, n int, c Curve, colour string) {
	width := 0.7 * innerWidth / float64(len(p.Labels)*len(p.Curves))
	for i, v := range c.Values {
		if math.IsNaN(v) {
			continue
		}
		x := p.x(i) + width*(float64(n)-float64(len(p.Curves))/2)
		fmt.Fprintf(svg, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, s.y(v), width, s.y(s.low)-s.y(v), colour)
	}
}

// Drawn says whether any curve has a value.
func (p Plot) Drawn() bool {
	return slices.ContainsFunc(p.Curves, func(c Curve) bool {
		return slices.ContainsFunc(c.Values, func(v float64) bool { return !math.IsNaN(v) })
	})
}
