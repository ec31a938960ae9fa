package client

// BoundAnswers lets c read answers of at most limit bytes.
func BoundAnswers(c *Client, limit int64) { c.doer.limit = limit }
