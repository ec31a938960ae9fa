package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// JSON is a value of any shape, as JSON text. In a file it is written as YAML, whose
// numbers, dates and order of members stay as they stand there.
type JSON string

// MarshalYAML writes the value as YAML, of which JSON is a part.
func (j JSON) MarshalYAML() (any, error) {
	if j == "" {
		return nil, nil
	}
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(j), &n); err != nil {
		return nil, err
	}
	return n.Content[0], nil
}

// jsonOf writes a node of a file as JSON, its members in their order and its
// numbers digit by digit.
func jsonOf(n *yaml.Node) (string, error) {
	switch n.Kind {
	case yaml.AliasNode:
		return jsonOf(n.Alias)
	case yaml.MappingNode:
		return jsonObject(n)
	case yaml.SequenceNode:
		items := make([]string, len(n.Content))
		for i, item := range n.Content {
			text, err := jsonOf(item)
			if err != nil {
				return "", err
			}
			items[i] = text
		}
		return "[" + strings.Join(items, ",") + "]", nil
	case yaml.DocumentNode, yaml.ScalarNode:
	}
	return jsonScalar(n), nil
}

func jsonObject(n *yaml.Node) (string, error) {
	members, seen := make([]string, 0, len(n.Content)/2), map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		name := n.Content[i]
		if name.Kind != yaml.ScalarNode || name.Tag == "!!merge" {
			return "", errors.New("takes plain names of members, and no merged ones (<<)")
		}
		if seen[name.Value] {
			return "", fmt.Errorf("has the member %q twice", name.Value)
		}
		seen[name.Value] = true
		text, err := jsonOf(n.Content[i+1])
		if err != nil {
			return "", err
		}
		members = append(members, quote(name.Value)+":"+text)
	}
	return "{" + strings.Join(members, ",") + "}", nil
}

// jsonScalar keeps what JSON has a word for; anything else, a date for one, is the
// text that stands there.
func jsonScalar(n *yaml.Node) string {
	switch n.Tag {
	case "!!null":
		return "null"
	case "!!bool":
		return strings.ToLower(n.Value)
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return n.Value
		}
		return jsonNumber(n)
	}
	return quote(n.Value)
}

// jsonNumber writes numbers that YAML alone knows (0x1F, 1_000, .5). What is none
// in JSON, such as .inf, is text.
func jsonNumber(n *yaml.Node) string {
	var whole int64
	if n.Tag == "!!int" && n.Decode(&whole) == nil {
		return strconv.FormatInt(whole, 10)
	}
	var number float64
	if err := n.Decode(&number); err == nil {
		if text, err := json.Marshal(number); err == nil {
			return string(text)
		}
	}
	return quote(n.Value)
}

func quote(text string) string {
	quoted, _ := json.Marshal(text) // a text always is JSON
	return string(quoted)
}
